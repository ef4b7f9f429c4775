// Another start of a relation: its views are paused, then built again.
import { call } from "../lib/api";
import { useOptions } from "../lib/options";
import type { Schema } from "../lib/schema";
import { useWork } from "../lib/use";
import { ProblemNote } from "../parts/basic";
import { Dialog } from "../parts/dialog";
import { OptionsForm } from "../parts/options_form";
import { tell } from "../parts/toasts";

export function ResetDialog({ source, relation, start, onClose }: {
  source: string;
  relation: string;
  start: Schema;
  onClose: () => void;
}) {
  const schema: Schema = { type: "object", properties: { start }, required: ["start"] };
  const form = useOptions(schema);
  const { isBusy, problem, run } = useWork();
  const refusal = form.placeOf(problem);
  const submit = (event: Event): void => {
    event.preventDefault();
    void run(async () => {
      const body = { relation, start: form.json().start ?? start.default };
      let waiting = 1;
      while (waiting > 0) {
        const reached = await call<{ waits_for: string[] }>("POST", `/sources/${encodeURIComponent(source)}/reset`, body);
        waiting = reached.waits_for.length;
      }
      tell(`${relation} is read from its new start`);
      onClose();
    });
  };
  return (
    <Dialog title={`Read ${relation} again?`} onClose={onClose}>
      <form onSubmit={submit} noValidate>
        <p>All views that read it are paused and then built from there. Their tables keep the earlier rows until then.</p>
        <OptionsForm schema={schema} state={form.state} refusal={refusal} onState={form.setState} />
        {problem && !refusal && <ProblemNote problem={problem} />}
        <footer>
          <button type="button" onClick={onClose}>Cancel</button>
          <button type="submit" class="danger solid" disabled={isBusy}>{isBusy ? "Pausing its views…" : "Read again"}</button>
        </footer>
      </form>
    </Dialog>
  );
}
