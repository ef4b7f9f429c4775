// A change of a whole view in progress, or why the last one failed or was cancelled.
import { call, mayOperate, offers, viewPath } from "../lib/api";
import { useWork } from "../lib/use";
import type { Replacing } from "../screens/view";
import { BackfillNote } from "./backfill";
import { ProblemNote, Text } from "./basic";
import { tell } from "./toasts";

const WORDS: Record<string, string> = {
  replace: "The new query is being built",
  rebuild: "The view is being rebuilt",
  resume: "The view is being resumed",
  rename: "The view is being renamed",
};

// "under way" is the earlier word, in a change that was requested before an upgrade.
const IN_PROGRESS = ["in progress", "under way"];

export function ReplacingNote({ name, reported, again }: { name: string; reported: Replacing; again: () => void }) {
  const { isBusy, problem, run } = useWork();
  if (!IN_PROGRESS.includes(reported.status)) {
    if (!reported.code) return null;
    const why = { title: reported.title ?? reported.detail ?? reported.code, code: reported.code, detail: reported.title ? reported.detail : "", hint: reported.hint };
    return <ProblemNote problem={why} what={`The last ${reported.kind} did not complete; the view is unchanged`} />;
  }
  const cancel = (): void => {
    void run(async () => {
      await call("DELETE", `${viewPath(name)}/replace`);
      tell("Cancelled; the view is unchanged");
      again();
    });
  };
  return (
    <section class="replacing" aria-label="Change in progress">
      <p>
        <strong>{WORDS[reported.kind] ?? reported.kind}</strong>
        <span class="dim">The current rows stay readable until then.</span>
        {mayOperate() && offers("DELETE /views/{}/replace") && (
          <button type="button" class="small end" disabled={isBusy} onClick={cancel}>Cancel</button>
        )}
      </p>
      <BackfillNote backfill={reported.progress ?? {}} />
      {reported.warnings?.map((warning) => <p key={warning} class="dim"><Text>{warning}</Text></p>)}
      {problem && <ProblemNote problem={problem} />}
    </section>
  );
}
