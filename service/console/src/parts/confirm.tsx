// A confirmation before an irreversible action; the most dangerous ones require typing the name.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useWork } from "../lib/use";
import { ProblemNote } from "./basic";
import { Dialog } from "./dialog";

export function Confirm({ title, action, name, children, run, onClose, isDanger = true }: {
  title: string;
  action: string;
  name?: string;
  children: ComponentChildren;
  run: () => Promise<void>;
  onClose: () => void;
  isDanger?: boolean;
}) {
  const [typed, setTyped] = useState("");
  const { isBusy, problem, run: start } = useWork();
  const submit = (event: Event): void => {
    event.preventDefault();
    void start(async () => {
      await run();
      onClose();
    });
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit}>
        {children}
        {name !== undefined && (
          <label>
            <span>Type <strong class="mono"><bdi>{name}</bdi></strong> to confirm</span>
            <input
              type="text"
              autoComplete="off"
              spellcheck={false}
              autoFocus
              value={typed}
              onInput={(event) => setTyped(event.currentTarget.value)}
            />
          </label>
        )}
        {problem && <ProblemNote problem={problem} />}
        <footer>
          <button type="button" onClick={onClose}>Cancel</button>
          <button type="submit" class={isDanger ? "danger solid" : "primary"} disabled={isBusy || (name !== undefined && typed !== name)}>
            {isBusy ? "Working…" : action}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
