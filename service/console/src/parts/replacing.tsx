// A change of a whole view that is under way, or why the newest one was given up.
import { call, mayOperate, offers, viewPath } from "../lib/api";
import { useWork } from "../lib/use";
import type { Replacing } from "../screens/view";
import { BackfillNote } from "./backfill";
import { ProblemNote, Text } from "./basic";
import { tell } from "./toasts";

const WORDS: Record<string, string> = {
  replace: "Another query is on its way",
  rebuild: "It is being computed anew",
  resume: "It is on its way back to live",
  rename: "It is getting another name",
};

export function ReplacingNote({ name, told, again }: { name: string; told: Replacing; again: () => void }) {
  const { isBusy, problem, run } = useWork();
  if (told.status !== "under way") {
    if (!told.code) return null;
    const why = { title: told.title ?? told.detail ?? told.code, code: told.code, detail: told.title ? told.detail : "", hint: told.hint };
    return <ProblemNote problem={why} what={`The newest ${told.kind} was given up; the view is what it was`} />;
  }
  const cancel = (): void => {
    void run(async () => {
      await call("DELETE", `${viewPath(name)}/replace`);
      tell("Given up; the view stays what it is");
      again();
    });
  };
  return (
    <section class="replacing" aria-label="Change under way">
      <p>
        <strong>{WORDS[told.kind] ?? told.kind}</strong>
        <span class="dim">Its rows stay readable until then.</span>
        {mayOperate() && offers("DELETE /views/{}/replace") && (
          <button type="button" class="small end" disabled={isBusy} onClick={cancel}>Give it up</button>
        )}
      </p>
      <BackfillNote backfill={told.progress ?? {}} />
      {told.warnings?.map((warning) => <p key={warning} class="dim"><Text>{warning}</Text></p>)}
      {problem && <ProblemNote problem={problem} />}
    </section>
  );
}
