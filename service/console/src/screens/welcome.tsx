// No view yet: an example made of the caller's own tables, with its rows and its cost before
// anything is created.
import { useEffect, useState } from "preact/hooks";
import { asProblem, call, mayOperate, offers, type Problem } from "../lib/api";
import { parseRows } from "../lib/exact";
import { compact, millis } from "../lib/format";
import { type Overview, refresh } from "../lib/live";
import { titleOf } from "../lib/names";
import { go, viewHref } from "../lib/router";
import { exampleOf, newViewHref, queryHref, useTables, type Example, type Table, type TableField } from "../lib/tables";
import { useWork } from "../lib/use";
import { ProblemNote, Skeleton, Text } from "../parts/basic";
import { Cost, type Validation } from "../parts/cost";
import { ResultTable } from "../parts/result_table";
import { Sql } from "../parts/sql";

const PREVIEW_ROWS = 5;
const PREVIEW_S = 5;

export function Welcome({ reported }: { reported: Overview }) {
  const { value: found, problem } = useTables();
  const tables = found?.tables.filter((table) => table.kind === "table") ?? [];
  const example = exampleOf(tables);
  return (
    <div class="screen welcome">
      <h1>Keep the answer of a query up to date</h1>
      <p class="lead">
        A view is a SELECT over the tables of your database. Its answer is a plain PostgreSQL table, and every commit
        reaches that table in milliseconds, without running the query again.
      </p>
      <ol class="steps">
        <li><strong>Choose what it reads.</strong> <TablesFound tables={tables} isKnown={found !== null} sources={reported.sources.length} /></li>
        <li><strong>See its rows and its cost.</strong> Below, for a query made of your tables. Nothing is created yet.</li>
        <li><strong>Read it like any table.</strong> From psql, REST or a stream of its changes.</li>
      </ol>
      {problem && <ProblemNote problem={problem} />}
      {!found && !problem && <Skeleton rows={4} wide />}
      {example && <FirstView example={example} />}
      {found && !example && <NoTable tables={tables} />}
    </div>
  );
}

function TablesFound({ tables, isKnown, sources }: { tables: Table[]; isKnown: boolean; sources: number }) {
  const usable = tables.filter((table) => !table.problem).length;
  return (
    <>
      {isKnown && <><a href="#/tables">{compact(usable)} of {compact(tables.length)} tables</a> of your database can be read by views{sources > 0 ? `, and ${sources} declared sources` : ""}. </>}
      {mayOperate() && offers("POST /sources") && <>Topics, files and other databases are <a href="#/new-source">declared as sources</a>.</>}
    </>
  );
}

function NoTable({ tables }: { tables: Table[] }) {
  return (
    <section class="adding" aria-label="No table to read">
      <h2>{tables.length ? "No table can be read by a view yet" : "The database has no table that you may read"}</h2>
      {tables.length ? (
        <p><a href="#/tables">Tables</a> says of each what it lacks, with the command to run.</p>
      ) : !mayOperate() ? (
        <p>Once an operator has created a view that you may read, it is here.</p>
      ) : (
        <p>Create one, or give the service's role SELECT on those that exist: this page shows them when you come back to it.</p>
      )}
      {mayOperate() && <p><a class="button primary" href="#/new">Write a query</a>{" "}<a class="button" href="#/new-source">Declare a source</a></p>}
    </section>
  );
}

/** The example: what it answers, its first rows, what it would cost, and the way to have it. */
function FirstView({ example }: { example: Example }) {
  const [name, setName] = useState(example.name);
  const { isBusy, problem, run } = useWork();
  const create = (event: Event): void => {
    event.preventDefault();
    void run(async () => {
      const view = await call<{ schema: string; name: string }>("POST", "/views", { name: name.trim(), query: example.query });
      await refresh();
      go(viewHref(titleOf(view)));
    });
  };
  return (
    <section aria-labelledby="first-view">
      <div class="section-head"><h2 id="first-view"><Text>{example.about}</Text></h2></div>
      <div class="workspace">
        <div>
          <Sql query={example.query} />
          <Preview query={example.query} />
        </div>
        <div>
          <div class="section-head"><h3>What it would cost</h3></div>
          <CostOf query={example.query} />
          {mayOperate() && (
            <form class="first-view" onSubmit={create}>
              <label>
                Name
                <input type="text" value={name} spellcheck={false} autoComplete="off" required onInput={(event) => setName(event.currentTarget.value)} />
              </label>
              <p class="actions">
                <button type="submit" class="primary" disabled={isBusy || !name.trim()}>{isBusy ? "Sending…" : "Create this view"}</button>
                <a class="button" href={newViewHref({ name, query: example.query })}>Change it first</a>
              </p>
              {problem && <ProblemNote problem={problem} />}
            </form>
          )}
        </div>
      </div>
    </section>
  );
}

/** One answer of the service for a query; asked once for each query. */
function useAsked<T>(path: string, body: Record<string, unknown>, parse?: (text: string) => unknown) {
  const [answer, setAnswer] = useState<T | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [tookMs, setTook] = useState(0);
  const text = JSON.stringify(body);
  useEffect(() => {
    const abort = new AbortController();
    const began = performance.now();
    call<T>("POST", path, body, abort.signal, parse).then(
      (found) => {
        setAnswer(found);
        setTook(performance.now() - began);
      },
      (error: unknown) => void (abort.signal.aborted || setProblem(asProblem(error))),
    );
    return () => abort.abort();
  }, [path, text]);
  return { answer, problem, tookMs };
}

function Preview({ query }: { query: string }) {
  const body = { query, limit: PREVIEW_ROWS, timeout_s: PREVIEW_S, wait_s: 0 };
  const { answer, problem, tookMs } = useAsked<{ fields: TableField[]; rows: Record<string, unknown>[]; has_more: boolean }>("/query", body, parseRows);
  if (problem?.code === "query.timeout") {
    return <p class="nothing">PostgreSQL has not answered it within {PREVIEW_S} s, so there is no preview. As a view, its rows are there at once.</p>;
  }
  if (problem) return <ProblemNote problem={problem} what="No preview" />;
  if (!answer) return <Skeleton rows={PREVIEW_ROWS} wide />;
  return (
    <>
      <div class="section-head">
        <h3>{answer.has_more ? "Its first rows" : "Its rows"}</h3>
        <span class="dim">answered in {millis(tookMs)} · <a href={queryHref(query)}>all of them</a></span>
      </div>
      {answer.rows.length ? <ResultTable fields={answer.fields} rows={answer.rows} label="Preview" /> : <p class="nothing">None yet: the tables are empty.</p>}
    </>
  );
}

function CostOf({ query }: { query: string }) {
  const { answer, problem } = useAsked<Validation>("/views/validate", { query });
  if (problem) return <ProblemNote problem={problem} />;
  return answer ? <Cost answer={answer} /> : <Skeleton rows={4} />;
}
