// The tables of the database, with the maintained views and the relations of sources: what a query
// can read, and what of it a view can.
import { useRef, useState } from "preact/hooks";
import { mayOperate, offers } from "../lib/api";
import { compact, count, plural } from "../lib/format";
import { moveFocus, useKeys } from "../lib/keys";
import { sqlTitle, titleOf } from "../lib/names";
import { viewHref } from "../lib/router";
import { exampleOf, newViewHref, queryHref, tableHref, useTables, type Reference, type Table } from "../lib/tables";
import { Empty, Figure, ProblemNote, Skeleton, Text } from "../parts/basic";

/** Hundreds of lines are searched, not read. */
const SHOWN = 300;

export function TablesScreen({ schema, name }: { schema: string; name: string }) {
  const { value: reported, problem } = useTables();
  if (!reported) {
    return <div class="screen"><h1>Tables</h1>{problem ? <ProblemNote problem={problem} /> : <Skeleton rows={8} wide />}</div>;
  }
  if (!schema) return <List tables={reported.tables} />;
  const found = reported.tables.find((table) => table.schema === schema && table.name === name);
  if (found) return <One table={found} tables={reported.tables} />;
  return (
    <div class="screen">
      <Crumbs />
      <h1><Text>{titleOf({ schema, name })}</Text></h1>
      <Empty title="No such table"><p>The database has none of this name that you may read.</p></Empty>
    </div>
  );
}

function Crumbs() {
  return <nav class="crumbs" aria-label="Breadcrumb"><a href="#/tables">Tables</a></nav>;
}

function List({ tables }: { tables: Table[] }) {
  const [search, setSearch] = useState("");
  const field = useRef<HTMLInputElement>(null);
  useKeys({
    j: () => moveFocus("[data-row]", 1),
    k: () => moveFocus("[data-row]", -1),
    "/": () => field.current?.focus(),
  });
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = tables.filter((table) => {
    const text = `${table.schema}.${table.name} ${kindOf(table)} ${table.columns.join(" ")}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return (
    <div class="screen">
      <div class="section-head">
        <h1>Tables <span class="dim">{count(found.length)}</span></h1>
        <div class="search">
          <input
            ref={field}
            type="search"
            placeholder="Search name or column"
            aria-label="Search tables"
            value={search}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
          <kbd aria-hidden="true">/</kbd>
        </div>
      </div>
      <table class="list">
        <thead>
          <tr>
            <th scope="col" class="name">Table</th>
            <th scope="col" class="number">Rows</th>
            <th scope="col" class="number wide-only">Columns</th>
            <th scope="col" class="wide-only">Key</th>
            <th scope="col">Read by</th>
          </tr>
        </thead>
        <tbody>
          {found.slice(0, SHOWN).map((table) => (
            <tr key={`${table.schema}.${table.name}`}>
              <td class="name">
                <a href={tableHref(table)} data-row><Text>{titleOf(table)}</Text></a>
                {kindOf(table) !== "table" && <span class="tag">{kindOf(table)}</span>}
                {table.problem && <span class="under warn"><Text>{table.problem.title}</Text></span>}
              </td>
              <td class="number">{compact(table.rows)}</td>
              <td class="number wide-only">{count(table.columns.length)}</td>
              <td class="wide-only mono"><Text>{table.key.join(", ") || "–"}</Text></td>
              <td>{table.views.length ? plural(table.views.length, "view") : <span class="dim">no view</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {found.length > SHOWN && <p class="nothing">And {count(found.length - SHOWN)} more: search for a part of the name.</p>}
      {!tables.length && <Empty title="No table"><p>There is none that your role may read. A table needs SELECT, and USAGE on its schema.</p></Empty>}
      {tables.length > 0 && !found.length && <p class="nothing">No table matches “<Text>{search}</Text>”.</p>}
    </div>
  );
}

/** What it is, in the words of the database; "source" for a relation of a declared source. */
const kindOf = (table: Table): string => table.table_kind ?? table.kind;

function One({ table, tables }: { table: Table; tables: Table[] }) {
  const title = titleOf(table);
  const isOfDatabase = table.kind === "table";
  const example = isOfDatabase && !table.problem ? exampleOf(tables, table) : null;
  const query = `SELECT *\nFROM ${sqlTitle(table)}\nLIMIT 100`;
  return (
    <div class="screen">
      <Crumbs />
      <div class="title">
        <h1><Text>{title}</Text></h1>
        <span class="tag">{kindOf(table)}</span>
        <span class="end">
          {table.kind === "view" && <a class="button" href={viewHref(title)}>Open the view</a>}
          {table.kind === "source" && <a class="button" href={`#/sources/${encodeURIComponent(table.schema)}`}>Open the source</a>}
          {table.kind !== "source" && offers("POST /query") && <a class="button" href={queryHref(query)}>Query it</a>}
          {example && mayOperate() && <a class="button primary" href={newViewHref(example)}>Make a view of it</a>}
        </span>
      </div>
      {table.problem && <ProblemNote problem={table.problem} what="No view can read this table" />}
      {isOfDatabase && (
        <dl class="figures">
          <Figure label="Rows" note="estimated by PostgreSQL">{compact(table.rows)}</Figure>
          <Figure label="Columns" note={`key: ${table.key.join(", ") || "none"}`}>{count(table.columns.length)}</Figure>
          <Figure label="Replica identity" note={identityNote(table)}>{table.replica_identity ?? "–"}</Figure>
          <Figure label="In the publication" note={table.is_published ? "its changes are read" : table.problem ? "" : "added with its first view"}>
            {table.is_published ? "yes" : "no"}
          </Figure>
        </dl>
      )}
      <div class="columns">
        <section aria-labelledby="table-columns">
          <div class="section-head"><h2 id="table-columns">Columns</h2></div>
          <Columns table={table} tables={tables} />
        </section>
        <section aria-labelledby="table-views">
          <div class="section-head"><h2 id="table-views">Read by</h2></div>
          {table.views.length ? (
            <ul class="plain">
              {table.views.map((view) => <li key={titleOf(view)}><a href={viewHref(titleOf(view))}><Text>{titleOf(view)}</Text></a></li>)}
            </ul>
          ) : <p class="dim">No view reads it directly.</p>}
          <Referrers table={table} tables={tables} />
        </section>
      </div>
    </div>
  );
}

function identityNote(table: Table): string {
  if (table.replica_identity === "default") return table.key.length ? "changes name the key" : "no key to name";
  return { full: "changes have the whole old row", index: "changes name a unique index", nothing: "no UPDATE, no DELETE" }[table.replica_identity ?? ""] ?? "";
}

function Columns({ table, tables }: { table: Table; tables: Table[] }) {
  return (
    <table class="list fields">
      <thead><tr><th scope="col">Column</th><th scope="col">Type</th><th scope="col">NULL</th></tr></thead>
      <tbody>
        {table.fields.map((field) => (
          <tr key={field.name}>
            <td class="name">
              <Text>{field.name}</Text>
              {table.key.includes(field.name) && <span class="tag">key</span>}
              {table.references.filter((one) => one.columns.includes(field.name)).map((one) => (
                <span key={`${one.schema}.${one.table}`} class="under dim">→ <Target reference={one} tables={tables} column={one.references[one.columns.indexOf(field.name)] ?? ""} /></span>
              ))}
            </td>
            <td class="mono"><Text>{field.type}</Text></td>
            <td class="dim">{field.nullable ? "may be" : "never"}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Target({ reference, tables, column }: { reference: Reference; tables: Table[]; column: string }) {
  const named = { schema: reference.schema, name: reference.table };
  const text = <Text>{`${titleOf(named)}.${column}`}</Text>;
  const isThere = tables.some((table) => table.schema === named.schema && table.name === named.name);
  return isThere ? <a href={tableHref(named)}>{text}</a> : text;
}

/** The tables whose foreign keys name this one. */
function Referrers({ table, tables }: { table: Table; tables: Table[] }) {
  const found = tables.filter((one) => one.references.some((reference) => reference.schema === table.schema && reference.table === table.name));
  if (!found.length) return null;
  return (
    <>
      <div class="section-head"><h2>Referenced by</h2></div>
      <ul class="plain">
        {found.map((one) => <li key={tableHref(one)}><a href={tableHref(one)}><Text>{titleOf(one)}</Text></a></li>)}
      </ul>
    </>
  );
}
