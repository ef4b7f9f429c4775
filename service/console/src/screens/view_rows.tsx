// The current rows, page by page, refreshed every second.
import { useState } from "preact/hooks";
import { viewPath } from "../lib/api";
import { parseRows } from "../lib/exact";
import { count } from "../lib/format";
import { quoted } from "../lib/names";
import { usePolled } from "../lib/use";
import { ProblemNote, Skeleton, Text } from "../parts/basic";
import { isNumber, useOpened, Value } from "../parts/values";
import type { Field, TabProps } from "./view";

interface RowPage {
  fields: Field[];
  rows: Record<string, unknown>[];
  next: string | null;
}

const LIMIT = 50;
const TESTS: [string, string][] = [
  ["eq", "="], ["neq", "≠"], ["lt", "<"], ["lte", "≤"], ["gt", ">"], ["gte", "≥"], ["ilike", "like"],
];

export function RowsTab({ name, view }: TabProps) {
  const [order, setOrder] = useState<{ column: string; isDown: boolean } | null>(null);
  const [pages, setPages] = useState<string[]>([]);
  const [filter, setFilter] = useState({ column: view.fields[0]?.name ?? "", test: "eq", value: "" });
  const { dialog, open } = useOpened();
  const query = new URLSearchParams({ limit: String(LIMIT) });
  if (order) query.set("order", `${quoted(order.column)}.${order.isDown ? "desc" : "asc"}`);
  if (filter.value !== "") query.set(quoted(filter.column), `${filter.test}.${filter.value}`);
  const after = pages.at(-1);
  if (after) query.set("after", after);
  const isThere = view.status === "live" || view.status === "paused" || view.live_at !== null;
  const { value: page, problem } = usePolled<RowPage>(isThere ? `${viewPath(name)}/rows?${query}` : null, 1000, parseRows);
  if (!isThere) return <p class="nothing">Rows are here once the view is live.</p>;
  const fields = page?.fields ?? view.fields;
  const sort = (column: string): void => {
    setPages([]);
    setOrder(order?.column === column ? (order.isDown ? null : { column, isDown: true }) : { column, isDown: false });
  };
  const first = pages.length * LIMIT + 1;
  return (
    <>
      <form class="filter" role="search" onSubmit={(event) => event.preventDefault()}>
        <select
          aria-label="Column"
          value={filter.column}
          onChange={(event) => setFilter({ ...filter, column: event.currentTarget.value })}
        >
          {fields.map((field) => <option key={field.name} value={field.name}>{field.name}</option>)}
        </select>
        <select aria-label="Comparison" value={filter.test} onChange={(event) => setFilter({ ...filter, test: event.currentTarget.value })}>
          {TESTS.map(([test, sign]) => <option key={test} value={test}>{sign}</option>)}
        </select>
        <input
          type="search"
          aria-label="Value"
          placeholder="any value"
          value={filter.value}
          onInput={(event) => {
            setPages([]);
            setFilter({ ...filter, value: event.currentTarget.value });
          }}
        />
        <span class="pager end">
          <span class="dim">{page ? (page.rows.length ? `${count(first)}–${count(first + page.rows.length - 1)}` : "no rows") : ""}</span>
          <button type="button" class="small" disabled={!pages.length} onClick={() => setPages(pages.slice(0, -1))}>Previous</button>
          <button type="button" class="small" disabled={!page?.next} onClick={() => page?.next && setPages([...pages, page.next])}>Next</button>
        </span>
      </form>
      {problem && <ProblemNote problem={problem} />}
      {!page && !problem && <Skeleton rows={8} wide />}
      {page && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Rows of the view">
          <table class="rows">
            <thead>
              <tr>
                {fields.map((field) => (
                  <th
                    key={field.name}
                    scope="col"
                    class={isNumber(field) ? "number" : ""}
                    title={field.type}
                    aria-sort={order?.column === field.name ? (order.isDown ? "descending" : "ascending") : undefined}
                  >
                    <button type="button" onClick={() => sort(field.name)}><Text>{field.name}</Text></button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {page.rows.map((row, i) => (
                <tr key={view.key.length ? JSON.stringify(view.key.map((k) => row[k])) : i}>
                  {fields.map((field) => (
                    <td key={field.name} class={isNumber(field) ? "number" : ""}>
                      <Value value={row[field.name]} column={field} onOpen={open} />
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {page && !page.rows.length && <p class="nothing">{filter.value ? "No row passes the filter." : "The view has no rows: its query answers none just now."}</p>}
      {dialog}
    </>
  );
}
