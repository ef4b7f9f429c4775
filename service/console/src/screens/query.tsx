// One query over tables and views, answered once (POST /query), and the view that it could become.
import { useRef, useState } from "preact/hooks";
import { asProblem, call, mayOperate, type Problem } from "../lib/api";
import { parseRows } from "../lib/exact";
import { count, millis, plural } from "../lib/format";
import { address } from "../lib/router";
import { newViewHref, type TableField } from "../lib/tables";
import { Empty, ProblemNote, Skeleton } from "../parts/basic";
import { CodeEditor, useNames } from "../parts/code_editor";
import { ResultTable } from "../parts/result_table";

interface QueryAnswer {
  fields: TableField[];
  rows: Record<string, unknown>[];
  has_more: boolean;
  views: Record<string, { epoch: number }>;
}

const DRAFT = "tidemark.query";
/** More would be slow to show; a program asks for up to 10,000. */
const LIMITS = [100, 500, 1000];
const TIMEOUT_S = 30;

export function QueryScreen() {
  const [start] = useState(() => address.value.query.get("query") ?? sessionStorage.getItem(DRAFT) ?? "");
  const [query, setQuery] = useState(start);
  const [limit, setLimit] = useState(LIMITS[0] ?? 100);
  const { answer, problem, tookMs, isBusy, run, stop } = useAnswer();
  const names = useNames();
  const write = (text: string): void => {
    setQuery(text);
    sessionStorage.setItem(DRAFT, text);
  };
  const submit = (): void => {
    if (query.trim()) void run(query, limit);
  };
  return (
    <div class="screen">
      <div class="title">
        <h1>Query</h1>
        <span class="end">
          {mayOperate() && query.trim() && <a class="button" href={newViewHref({ query })}>Make this a view</a>}
          {isBusy ? (
            <button type="button" onClick={stop}>Cancel</button>
          ) : (
            <button type="button" class="primary" disabled={!query.trim()} onClick={submit} title="Ctrl Enter">Run</button>
          )}
        </span>
      </div>
      <div class={problem?.position ? "frame wrong" : "frame"}>
        <CodeEditor text={start} names={names} error={problem?.position ?? null} onText={write} onSubmit={submit} />
        <p class="check">
          <label class="inline">
            At most
            <select value={limit} onChange={(event) => setLimit(Number(event.currentTarget.value))}>
              {LIMITS.map((one) => <option key={one} value={one}>{one}</option>)}
            </select>
            rows
          </label>
          <span role="status" aria-live="polite">{isBusy ? "Running…" : answer ? wordsOf(answer, tookMs) : "One SELECT, run once and read only. Ctrl Enter runs it."}</span>
        </p>
      </div>
      {problem && <ProblemNote problem={problem} />}
      {isBusy && !answer && <Skeleton rows={6} wide />}
      {answer && answer.rows.length > 0 && (
        <div class={isBusy || problem ? "old" : ""}><ResultTable fields={answer.fields} rows={answer.rows} label="Rows of the answer" /></div>
      )}
      {answer && !answer.rows.length && !problem && <p class="nothing">The query answers no row.</p>}
      {!answer && !problem && !isBusy && (
        <Empty title="Ask once, or keep the answer">
          <p>
            A query here reads tables and views as they are now. As a view, its answer is kept up to date, so that
            nobody has to run it again.
          </p>
        </Empty>
      )}
    </div>
  );
}

function wordsOf(answer: QueryAnswer, tookMs: number): string {
  const epochs = Object.entries(answer.views).map(([group, { epoch }]) => `views of group ${group} at epoch ${count(epoch)}`);
  const rows = answer.has_more ? `The first ${plural(answer.rows.length, "row")}; there are more` : plural(answer.rows.length, "row");
  return [rows, millis(tookMs), ...epochs].join(" · ");
}

/** The newest answer; a query that is still running is cancelled by the next. */
function useAnswer() {
  const [answer, setAnswer] = useState<QueryAnswer | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [tookMs, setTook] = useState(0);
  const [isBusy, setBusy] = useState(false);
  const running = useRef<AbortController | null>(null);
  const stop = (): void => {
    running.current?.abort();
    running.current = null;
    setBusy(false);
  };
  const run = async (query: string, limit: number): Promise<void> => {
    stop();
    const abort = (running.current = new AbortController());
    setBusy(true);
    setProblem(null);
    const began = performance.now();
    try {
      const body = { query, limit, timeout_s: TIMEOUT_S };
      const found = await call<QueryAnswer>("POST", "/query", body, abort.signal, parseRows);
      setAnswer(found);
      setTook(performance.now() - began);
    } catch (error) {
      if (!abort.signal.aborted) setProblem(asProblem(error));
    }
    if (running.current === abort) stop();
  };
  return { answer, problem, tookMs, isBusy, run, stop };
}
