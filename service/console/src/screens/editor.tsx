// A new view, or another query for one, validated by PostgreSQL while it is written.
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, bodySchema, call, offers, type Position, type Problem, viewPath } from "../lib/api";
import { count, seconds } from "../lib/format";
import { titleOf } from "../lib/names";
import { type OptionsState, useOptions } from "../lib/options";
import { address, viewHref } from "../lib/router";
import type { Schema } from "../lib/schema";
import { queryHref } from "../lib/tables";
import { usePolled, useWork } from "../lib/use";
import { BackfillNote } from "../parts/backfill";
import { ProblemNote, Skeleton, Status, Text } from "../parts/basic";
import { Answer, type Validation } from "../parts/cost";
import { ReplacingNote } from "../parts/replacing";
import { CodeEditor, useNames } from "../parts/code_editor";
import { OptionsForm, type Refusal } from "../parts/options_form";
import type { ViewFacts } from "./view";

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
  const schema = optionsOf(replaces !== "");
  if (replaces && !(view && schema.properties)) {
    return <div class="screen"><h1>Replace</h1>{problem ? <ProblemNote problem={problem} /> : <Skeleton rows={6} wide />}</div>;
  }
  const { query: given } = address.value;
  const draft = view
    ? { name: titleOf(view), query: view.query }
    : given.get("query") ? { name: given.get("name") ?? "", query: given.get("query") ?? "" } : keptDraft();
  return <Editor start={draft} replaces={view ?? null} schema={schema} />;
}

/** The options of a view. A view's group and runtime are not changed with its query. */
function optionsOf(isReplaced: boolean): Schema {
  const schema = bodySchema("ViewOptions");
  if (!isReplaced) return schema;
  const { group: _group, runtime: _runtime, ...properties } = schema.properties ?? {};
  return { ...schema, properties };
}

function Editor({ start, replaces, schema }: { start: Draft; replaces: ViewFacts | null; schema: Schema }) {
  const [name, setName] = useState(start.name);
  const [query, setQuery] = useState(start.query);
  const [made, setMade] = useState<string | null>(null);
  const form = useOptions(schema, replaces?.options);
  const { answer, problem, isChecking } = useValidation(query, form.json());
  const work = useWork();
  const names = useNames();
  useEffect(() => {
    if (!replaces) sessionStorage.setItem(DRAFT, JSON.stringify({ name, query }));
  }, [name, query]);
  const canSubmit = !work.isBusy && query.trim() !== "" && name.trim() !== "";
  const submit = (): void => {
    if (!canSubmit) return;
    void work.run(async () => {
      if (replaces) {
        const options = changedOf(schema, replaces.options, form.json());
        await call("POST", `${viewPath(titleOf(replaces))}/replace`, { query, options });
        setMade(titleOf(replaces));
      } else {
        const view = await call<ViewFacts>("POST", "/views", { name: name.trim(), query, options: form.json() });
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
  if (made !== null) return <Making name={made} isReplaced={replaces !== null} />;
  const shown = work.problem ?? problem;
  const placed = positionOf(problem) ?? positionOf(work.problem);
  const refusal = form.placeOf(shown);
  return (
    <div class="screen editor" onKeyDown={submitOnEnter}>
      <nav class="crumbs" aria-label="Breadcrumb"><a href="#/">Views</a></nav>
      <div class="title">
        <h1>{replaces ? <>Replace <Text>{titleOf(replaces)}</Text></> : "New view"}</h1>
        <span class="end">
          {offers("POST /query") && query.trim() && <a class="button small" href={queryHref(query)}>Run it once</a>}
          <button type="button" class="primary" disabled={!canSubmit || problem !== null} onClick={submit} title="Ctrl Enter">
            {work.isBusy ? "Sending…" : replaces ? "Replace" : "Create view"}
          </button>
        </span>
      </div>
      {!replaces && (
        <label class="naming">
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
      )}
      <div class="workspace">
        <div>
          <div class={placed ? "frame wrong" : "frame"}>
            <CodeEditor text={start.query} names={names} error={placed} onText={setQuery} onSubmit={submit} />
            <p class="check" role="status" aria-live="polite">{wordsOf(query, isChecking, answer, problem)}{answer && !problem && !name.trim() && ". Give it a name to create it."}</p>
          </div>
          <ViewOptions schema={schema} form={form} refusal={refusal} />
        </div>
        <div class="answer" aria-label="What would be created">
          {shown && !refusal && <ProblemNote problem={shown} />}
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

/** All options of POST /views, by the service's own description of them. */
function ViewOptions({ schema, form, refusal }: { schema: Schema; form: OptionsState; refusal: Refusal | null }) {
  const [isOpen, setOpen] = useState(false);
  const filled = Object.keys(form.json()).length;
  const isShown = isOpen || refusal !== null;
  return (
    <details class="rare view-options" open={isShown} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Options {filled > 0 && <span class="tag">{filled} set</span>}</summary>
      {isShown && <OptionsForm schema={schema} state={form.state} refusal={refusal} onState={form.setState} />}
    </details>
  );
}

/** The options that differ from the present ones; one that was emptied has its default again. */
function changedOf(schema: Schema, present: Record<string, unknown>, wanted: Record<string, unknown>): Record<string, unknown> {
  const value = (name: string): unknown => wanted[name] ?? schema.properties?.[name]?.default ?? null;
  const differs = (name: string): boolean => JSON.stringify(value(name)) !== JSON.stringify(present[name] ?? null);
  const names = Object.keys(schema.properties ?? {}).filter((name) => name in present || name in wanted);
  return Object.fromEntries(names.filter(differs).map((name) => [name, value(name)]));
}

function wordsOf(query: string, isChecking: boolean, answer: Validation | null, problem: Problem | null): string {
  if (!query.trim()) return "One SELECT";
  if (problem) return problem.position ? `Line ${problem.position.line}, column ${problem.position.column}: ${problem.title}` : problem.title;
  return isChecking || !answer ? "Checking…" : "PostgreSQL accepts it";
}

/** POST /views/validate a moment after the last key; an older answer never overtakes. */
function useValidation(query: string, options: Record<string, unknown>) {
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
        setAnswer(await call<Validation>("POST", "/views/validate", { query, options }, abort.signal));
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
  }, [query, JSON.stringify(options)]);
  return { answer, problem, isChecking };
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

function positionOf(problem: Problem | null): Position | null {
  return problem?.position ?? null;
}

