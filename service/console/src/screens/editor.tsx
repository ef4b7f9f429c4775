// A new view, or another query for one, validated by PostgreSQL while it is written.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { asProblem, call, offers, type Position, type Problem, viewPath } from "../lib/api";
import { bytes, count, plural, rate, seconds } from "../lib/format";
import { sqlName, titleOf } from "../lib/names";
import { address, viewHref } from "../lib/router";
import { usePolled, useWork } from "../lib/use";
import { BackfillNote } from "../parts/backfill";
import { ProblemNote, Skeleton, Snippet, Status, Text } from "../parts/basic";
import { ReplacingNote } from "../parts/replacing";
import { CodeEditor, type SQLNamespace } from "../parts/code_editor";
import { Fields } from "../parts/fields";
import type { ViewFacts } from "./view";

interface Estimate {
  source_rows?: number | null;
  output_rows?: number | null;
  state_bytes?: number | null;
  backfill_s?: number | null;
  engine?: string;
  amplification?: Record<string, { rows_out: number; rows_touched: number }>;
  notes?: string[];
  risks?: { operator: string; why: string; hint: string }[];
}

interface Validation {
  kind: string;
  key: string[];
  why_no_key: string;
  fields: { name: string; type: string; nullable: boolean }[];
  warnings: string[];
  in_postgres: string[];
  estimated_source_rows: number;
  backfill: string;
  plan: string;
  estimate?: Estimate | null;
}

const PAUSE_MS = 250;
const DRAFT = "tidemark.draft";

interface Draft {
  name: string;
  query: string;
}

function keptDraft(): Draft {
  try {
    return JSON.parse(sessionStorage.getItem(DRAFT) ?? "") as Draft;
  } catch {
    return { name: "", query: "" };
  }
}

export function EditorScreen({ replaces }: { replaces: string }) {
  const { value: view, problem } = usePolled<ViewFacts>(replaces ? viewPath(replaces) : null);
  if (replaces && !view) {
    return <div class="screen"><h1>Replace</h1>{problem ? <ProblemNote problem={problem} /> : <Skeleton rows={6} wide />}</div>;
  }
  const given = address.value.query.get("query");
  const draft = view ? { name: titleOf(view), query: view.query } : given ? { name: "", query: given } : keptDraft();
  return <Editor start={draft} replaces={replaces} />;
}

function Editor({ start, replaces }: { start: Draft; replaces: string }) {
  const [name, setName] = useState(start.name);
  const [query, setQuery] = useState(start.query);
  const [options, setOptions] = useState({ backfill: "auto", group: "default" });
  const [made, setMade] = useState<string | null>(null);
  const { answer, problem, isChecking } = useValidation(query);
  const work = useWork();
  const { value: reported } = usePolled<{ tables: Completable[] }>(offers("GET /tables") ? "/tables" : null);
  const names = useMemo(() => namesToComplete(reported?.tables ?? []), [reported]);
  useEffect(() => {
    if (!replaces) sessionStorage.setItem(DRAFT, JSON.stringify({ name, query }));
  }, [name, query]);
  const canSubmit = !work.isBusy && query.trim() !== "" && name.trim() !== "";
  const submit = (): void => {
    if (!canSubmit) return;
    void work.run(async () => {
      if (replaces) {
        await call("POST", `${viewPath(replaces)}/replace`, { query });
        setMade(replaces);
      } else {
        const view = await call<ViewFacts>("POST", "/views", { name: name.trim(), query, options });
        sessionStorage.removeItem(DRAFT);
        setMade(titleOf(view));
      }
    });
  };
  // The query's own editor handles it itself; this is for the fields beside it.
  const submitOnEnter = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.defaultPrevented) return;
    event.preventDefault();
    submit();
  };
  if (made !== null) return <Making name={made} isReplaced={replaces !== ""} />;
  const placed = positionOf(problem) ?? positionOf(work.problem);
  return (
    <div class="screen editor" onKeyDown={submitOnEnter}>
      <nav class="crumbs" aria-label="Breadcrumb"><a href="#/">Views</a></nav>
      <div class="title">
        <h1>{replaces ? <>Replace <Text>{replaces}</Text></> : "New view"}</h1>
        <span class="end">
          <button type="button" class="primary" disabled={!canSubmit || problem !== null} onClick={submit} title="Ctrl Enter">
            {work.isBusy ? "Sending…" : replaces ? "Replace" : "Create view"}
          </button>
        </span>
      </div>
      {!replaces && (
        <div class="naming">
          <label>
            Name
            <input
              type="text"
              value={name}
              placeholder="revenue_by_region"
              spellcheck={false}
              autoComplete="off"
              onInput={(event) => setName(event.currentTarget.value)}
            />
          </label>
          <label>
            Backfill
            <select value={options.backfill} onChange={(event) => setOptions({ ...options, backfill: event.currentTarget.value })}>
              {["auto", "local", "spark"].map((engine) => <option key={engine}>{engine}</option>)}
            </select>
          </label>
          <label>
            Group
            <input
              type="text"
              value={options.group}
              pattern="[a-z][a-z0-9]{0,23}"
              onInput={(event) => setOptions({ ...options, group: event.currentTarget.value || "default" })}
            />
          </label>
        </div>
      )}
      <div class="workspace">
        <div class={placed ? "frame wrong" : "frame"}>
          <CodeEditor text={start.query} names={names} error={placed} onText={setQuery} onSubmit={submit} />
          <p class="check" role="status" aria-live="polite">{wordsOf(query, isChecking, answer, problem)}{answer && !problem && !name.trim() && ". Give it a name to create it."}</p>
        </div>
        <div class="answer" aria-label="What would be created">
          {work.problem && <ProblemNote problem={work.problem} />}
          {problem && !work.problem && <ProblemNote problem={problem} />}
          {answer && <Answer answer={answer} isOld={problem !== null} />}
          {!answer && !problem && (
            <div class="teach">
              <p>Columns, key, plan and cost appear here as you write. Nothing is created until you submit.</p>
              <p class="dim">Tab leaves the editor; Ctrl Space completes; Ctrl Enter creates.</p>
            </div>
          )}
        </div>
      </div>
    </div>
  );
}

function wordsOf(query: string, isChecking: boolean, answer: Validation | null, problem: Problem | null): string {
  if (!query.trim()) return "One SELECT";
  if (problem) return problem.position ? `Line ${problem.position.line}, column ${problem.position.column}: ${problem.title}` : problem.title;
  return isChecking || !answer ? "Checking…" : "PostgreSQL accepts it";
}

/** POST /views/validate a moment after the last key; an older answer never overtakes. */
function useValidation(query: string) {
  const [answer, setAnswer] = useState<Validation | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isChecking, setChecking] = useState(false);
  const isFirst = useRef(true);
  useEffect(() => {
    if (!query.trim()) {
      setAnswer(null);
      setProblem(null);
      return;
    }
    setChecking(true);
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      try {
        setAnswer(await call<Validation>("POST", "/views/validate", { query }, abort.signal));
        setProblem(null);
      } catch (error) {
        if (!abort.signal.aborted) setProblem(asProblem(error));
      }
      if (!abort.signal.aborted) setChecking(false);
    }, isFirst.current ? 0 : PAUSE_MS);
    isFirst.current = false;
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [query]);
  return { answer, problem, isChecking };
}

function Answer({ answer, isOld }: { answer: Validation; isOld: boolean }) {
  const estimate: Estimate = answer.estimate ?? { source_rows: answer.estimated_source_rows, engine: answer.backfill };
  const facts: [string, string][] = [
    ["Source rows", count(estimate.source_rows)],
    ["View rows", count(estimate.output_rows)],
    ["State", bytes(estimate.state_bytes)],
    ["Backfill", [seconds(estimate.backfill_s), estimate.engine ?? answer.backfill].filter((w) => w !== "–").join(", ")],
    ...Object.entries(estimate.amplification ?? {}).map(([table, effect]): [string, string] => [
      `A row of ${table}`,
      `changes ${rate(effect.rows_out)} rows, touches ${rate(effect.rows_touched)}`,
    ]),
  ];
  return (
    <div class={isOld ? "old" : ""} aria-hidden={isOld}>
      <dl class="facts estimate">
        {facts.filter(([, value]) => value !== "–").map(([label, value]) => (
          <FactRow key={label} label={label} value={value} />
        ))}
      </dl>
      {answer.kind === "multiset" && <p class="dim">No primary key: <Text>{answer.why_no_key}</Text></p>}
      {estimate.risks?.length || answer.warnings.length || estimate.notes?.length ? (
        <ul class="reasons soft">
          {estimate.risks?.map((risk) => (
            <li key={risk.operator + risk.why}>
              <strong><Text>{risk.operator}</Text></strong> <Text>{risk.why}</Text> {risk.hint && <span class="dim"><Text>{risk.hint}</Text></span>}
            </li>
          ))}
          {[...answer.warnings, ...(estimate.notes ?? [])].map((note) => <li key={note}><Text>{note}</Text></li>)}
        </ul>
      ) : null}
      <h2>{plural(answer.fields.length, "column")}</h2>
      <Fields fields={answer.fields} keyNames={answer.key} />
      <Snippet label="Plan" text={answer.plan} />
      {answer.in_postgres.length > 0 && <Snippet label="Computed by PostgreSQL, in batches" text={answer.in_postgres.join("\n")} />}
    </div>
  );
}

function FactRow({ label, value }: { label: string; value: string }) {
  return <><dt><Text>{label}</Text></dt><dd>{value}</dd></>;
}

/** The progress from the request to live. */
function Making({ name, isReplaced }: { name: string; isReplaced: boolean }) {
  const { value: view, problem, again } = usePolled<ViewFacts>(viewPath(name), 500);
  const isDone = view?.status === "live" && !view.replacing && (isReplaced || view.live_at !== null);
  const [startedAt] = useState(() => Date.now());
  const [tookMs, setTook] = useState<number | null>(null);
  useEffect(() => {
    if (isDone && tookMs === null) setTook(Date.now() - startedAt);
  }, [isDone]);
  return (
    <div class="screen making">
      <div class="title">
        <h1><Text>{name}</Text></h1>
        <Status status={view?.status ?? "creating"} />
      </div>
      {problem && <ProblemNote problem={problem} />}
      {view?.error && <ProblemNote problem={view.error} what="This view has failed" />}
      {view?.replacing && <ReplacingNote name={name} reported={view.replacing} again={again} />}
      {isDone ? (
        <p class="lead" role="status">
          {isReplaced ? "The new query is live" : "It is live"}
          {tookMs !== null && ` after ${seconds(tookMs / 1000)}`}, with {count(view.rows)} rows.
        </p>
      ) : (
        view?.status !== "failed" && !view?.replacing && <BackfillNote backfill={view?.backfill ?? {}} />
      )}
      <p>
        <a class="button primary" href={viewHref(name)}>Open the view</a>{" "}
        <a class="button" href="#/">All views</a>
      </p>
    </div>
  );
}

interface Completable {
  schema: string;
  name: string;
  kind: string;
  columns: string[];
}

/** The tables that this caller may read; the schema is omitted if it is not needed. */
function namesToComplete(tables: Completable[]): SQLNamespace {
  const found: Record<string, SQLNamespace> = {};
  for (const table of tables) {
    const columns = table.columns.map((column) => ({ label: column, apply: sqlName(column), type: "property" }));
    if (table.schema === "public") found[escaped(table.name)] = columns;
    found[`${escaped(table.schema)}.${escaped(table.name)}`] = columns;
  }
  return found;
}

/** A dot inside a name does not separate names. */
const escaped = (name: string): string => name.replaceAll("\\", "\\\\").replaceAll(".", "\\.");

function positionOf(problem: Problem | null): Position | null {
  return problem?.position ?? null;
}

