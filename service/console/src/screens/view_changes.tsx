// Changes as they become visible, epoch by epoch, the newest on top. Rendered at most four times a
// second; changes that do not fit are only counted.
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, type Problem, viewPath } from "../lib/api";
import { type Epoch, Gathering } from "../lib/changes";
import { clock, compact, count } from "../lib/format";
import { useKeys } from "../lib/keys";
import { type Connection, subscribe } from "../lib/sse";
import { ProblemNote, Text } from "../parts/basic";
import { isNumber, useOpened, Value } from "../parts/values";
import type { TabProps } from "./view";

const KEPT_EPOCHS = 60;
const KEPT_ROWS = 240;
const DRAWN_MS = 250;

const WORDS: Record<Connection, string> = {
  connecting: "connecting",
  open: "live",
  waiting: "reconnecting",
  ended: "ended",
};

export function ChangesTab({ name, view }: TabProps) {
  const [epochs, setEpochs] = useState<Epoch[]>([]);
  const [stands, setStands] = useState<Connection>("connecting");
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isPaused, setPaused] = useState(false);
  const [missed, setMissed] = useState(0);
  const paused = useRef(false);
  const { dialog, open } = useOpened();
  const key = view.key.join("\0");
  const turn = (): void => {
    paused.current = !paused.current;
    setPaused(paused.current);
    if (!paused.current) setMissed(0);
  };
  useKeys({ p: turn });
  useEffect(() => {
    const abort = new AbortController();
    const gathering = new Gathering(view.key);
    let waiting: Epoch[] = [];
    let passed = 0;
    const draw = setInterval(() => {
      if (passed) setMissed((n) => n + passed);
      passed = 0;
      if (!waiting.length) return;
      const fresh = waiting.reverse();
      waiting = [];
      setEpochs((before) => capped([...fresh, ...before]));
    }, DRAWN_MS);
    const path = (resume: string): string =>
      `${viewPath(name)}/changes?snapshot=false${resume ? `&resume=${encodeURIComponent(resume)}` : ""}`;
    subscribe(path, (received) => {
      if (received.event === "error") setProblem(problemIn(received.data));
      const epoch = gathering.take(received);
      if (!epoch) return;
      if (paused.current) passed += 1;
      else if (waiting.push(epoch) > KEPT_EPOCHS) waiting.shift();
    }, (now) => {
      setStands(now);
      if (now === "open") setProblem(null);
    }, abort.signal).catch((error: unknown) => abort.signal.aborted || setProblem(asProblem(error)));
    return () => {
      abort.abort();
      clearInterval(draw);
    };
  }, [name, key]);
  return (
    <>
      <div class="filter">
        <span class={`status ${stands === "open" ? "good" : "busy"}`}>
          <span class="dot" aria-hidden="true" />
          {isPaused ? "paused" : WORDS[stands]}
        </span>
        <span class="dim" role="status">
          {isPaused && missed > 0 ? `${count(missed)} epochs went by` : ""}
        </span>
        <span class="end">
          <button type="button" class="small" aria-pressed={isPaused} onClick={turn}>{isPaused ? "Resume" : "Pause"} <kbd>p</kbd></button>
          <button type="button" class="small" onClick={() => setEpochs([])}>Clear</button>
        </span>
      </div>
      {problem && <ProblemNote problem={problem} />}
      {epochs.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Changes of the view, newest first">
          <table class="rows changes">
            <thead>
              <tr>
                <th scope="col"><span class="unseen">added or removed</span></th>
                {view.fields.map((field) => (
                  <th key={field.name} scope="col" class={isNumber(field) ? "number" : ""}><Text>{field.name}</Text></th>
                ))}
              </tr>
            </thead>
            {epochs.map((epoch) => <EpochRows key={epoch.epoch} epoch={epoch} view={view} open={open} />)}
          </table>
        </div>
      ) : (
        !problem && <p class="nothing">No change since you opened this page. A commit at the source that changes this view appears here within milliseconds.</p>
      )}
      {dialog}
    </>
  );
}

function EpochRows({ epoch, view, open }: { epoch: Epoch; view: TabProps["view"]; open: (text: string, title: string) => void }) {
  const more = epoch.added + epoch.removed - epoch.changes.reduce((sum, change) => sum + Math.abs(change.weight), 0);
  return (
    <tbody>
      <tr class="epoch">
        <th colSpan={view.fields.length + 1} scope="rowgroup">
          <span>epoch {epoch.epoch}</span>
          <time>{clock(epoch.at)}</time>
          <span class="plus">+{compact(epoch.added)}</span>
          <span class="minus">−{compact(epoch.removed)}</span>
        </th>
      </tr>
      {epoch.changes.map((change, i) => (
        <tr key={i} class={change.weight > 0 ? "plus" : "minus"}>
          <td class="sign" aria-label={change.weight > 0 ? "added" : "removed"}>
            {change.weight > 0 ? "+" : "−"}{Math.abs(change.weight) > 1 ? Math.abs(change.weight) : ""}
          </td>
          {view.fields.map((field) => (
            <td key={field.name} class={`${isNumber(field) ? "number" : ""}${change.differs.has(field.name) ? " differs" : ""}`}>
              <Value value={change.row[field.name]} column={field} onOpen={open} />
            </td>
          ))}
        </tr>
      ))}
      {more > 0 && <tr class="more"><td colSpan={view.fields.length + 1}>and {compact(more)} more</td></tr>}
    </tbody>
  );
}

/** The newest epochs, as many as fit. */
function capped(epochs: Epoch[]): Epoch[] {
  let rows = 0;
  const end = epochs.findIndex((epoch) => (rows += epoch.changes.length) > KEPT_ROWS);
  return epochs.slice(0, Math.min(KEPT_EPOCHS, end < 0 ? epochs.length : Math.max(1, end)));
}

function problemIn(data: string): Problem {
  try {
    return JSON.parse(data) as Problem;
  } catch {
    return asProblem(data);
  }
}
