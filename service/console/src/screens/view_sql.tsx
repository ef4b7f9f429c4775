// The definition of a view: its query, columns and plan.
import { viewPath } from "../lib/api";
import { ago, bytes, compact, count } from "../lib/format";
import { usePolled } from "../lib/use";
import { Snippet, Text } from "../parts/basic";
import { Fields } from "../parts/fields";
import { Sql } from "../parts/sql";
import type { TabProps, ViewFacts } from "./view";

interface Plan {
  text: string;
  in_postgres: string[];
  shared: { what: string; shared_with: string[]; rows: number; saved_bytes: number }[];
}

export function SqlTab({ name, view }: TabProps) {
  const { value: plan } = usePolled<Plan>(`${viewPath(name)}/plan`);
  return (
    <>
      <Sql query={view.query} />
      <div class="columns">
        <section aria-labelledby="columns">
          <div class="section-head"><h2 id="columns">Columns</h2></div>
          <Fields fields={view.fields} keyNames={view.key} />
        </section>
        <section aria-labelledby="facts">
          <div class="section-head"><h2 id="facts">Facts</h2></div>
          <dl class="facts">
            <dt>Kind</dt>
            <dd>{view.kind === "multiset" ? "multiset: each distinct row with its count" : view.kind === "keyed" ? "keyed: a table with a primary key" : "–"}</dd>
            <dt>Group</dt><dd>{view.group}</dd>
            {Object.entries(view.options).filter(([option, value]) => option !== "group" && value !== null).map(([option, value]) => (
              <FactRow key={option} name={option} value={optionText(value)} />
            ))}
            <dt>Created</dt><dd>{ago(view.created_at)}</dd>
            <dt>Live since</dt><dd>{ago(view.live_at)}</dd>
          </dl>
          <TimeFacts view={view} />
          {view.warnings.length > 0 && (
            <ul class="reasons soft">{view.warnings.map((warning) => <li key={warning}><Text>{warning}</Text></li>)}</ul>
          )}
        </section>
      </div>
      <Snippet label="Plan" text={plan?.text ?? view.plan} />
      {plan && plan.in_postgres.length > 0 && (
        <Snippet label="Computed by PostgreSQL, in batches" text={plan.in_postgres.join("\n")} />
      )}
      {plan && plan.shared.length > 0 && (
        <section aria-labelledby="shared">
          <div class="section-head"><h2 id="shared">Shared with other views</h2></div>
          <ul class="plain">
            {plan.shared.map((part) => (
              <li key={part.what}>
                <Text>{part.what}</Text>{" "}
                <span class="dim">
                  with <Text>{part.shared_with.join(", ")}</Text>: about {compact(part.rows)} rows stored once, {bytes(part.saved_bytes)} saved
                </span>
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

/** What the view knows of time: its clock, how far its columns have come, and its past. */
function TimeFacts({ view }: { view: ViewFacts }) {
  const { watermarks = {}, history, positions } = view;
  const at = clockText(positions.clock);
  if (at === undefined && !Object.keys(watermarks).length && !history) return null;
  return (
    <>
      <div class="section-head"><h2 id="time">Time</h2></div>
      <dl class="facts" aria-labelledby="time">
        {at !== undefined && <FactRow name="now() is" value={at} />}
        {Object.entries(watermarks).map(([column, moment]) => (
          <FactRow key={column} name={`Watermark of ${column}`} value={moment} />
        ))}
        {Object.keys(watermarks).length > 0 && <FactRow name="Late rows" value={count(view.late_rows ?? 0)} />}
        {history && <FactRow name="History" value={history.table} />}
        {history && <FactRow name="Oldest point" value={`epoch ${history.oldest_epoch}, ${history.oldest_at}`} />}
      </dl>
    </>
  );
}

/** The time of a clock's position, {"now": {"us": microseconds since 1970}}, in UTC. */
function clockText(position: string | undefined): string | undefined {
  if (position === undefined) return undefined;
  const { now } = JSON.parse(position) as { now?: { us: number } };
  return now && new Date(now.us / 1000).toISOString();
}

/** An option's value; one by column as "column: value". */
function optionText(value: unknown): string {
  if (typeof value !== "object" || value === null) return String(value);
  return Object.entries(value).map(([column, one]) => `${column}: ${String(one)}`).join(", ");
}

function FactRow({ name, value }: { name: string; value: string }) {
  return <><dt>{name}</dt><dd><Text>{value}</Text></dd></>;
}
