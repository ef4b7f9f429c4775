// What the caller's queries can read (GET /tables), and an example of a view made of it.
import type { ReportedError } from "./live";
import { type Named, sqlTitle, sqlWord } from "./names";
import { usePolled, type Polled } from "./use";

export interface TableField {
  name: string;
  type: string;
  nullable: boolean;
}

/** A foreign key: columns of the table, and those of another that they name. */
export interface Reference {
  columns: string[];
  schema: string;
  table: string;
  references: string[];
}

export interface Table {
  schema: string;
  name: string;
  /** "table" of the database, "view" that is maintained, or relation of a "source". */
  kind: string;
  columns: string[];
  fields: TableField[];
  key: string[];
  rows: number | null;
  views: Named[];
  table_kind: string | null;
  references: Reference[];
  replica_identity: string | null;
  is_published: boolean | null;
  problem: ReportedError | null;
}

export function useTables(): Polled<{ tables: Table[] }> {
  return usePolled<{ tables: Table[] }>("/tables");
}

export const tableHref = ({ schema, name }: { schema: string; name: string }): string =>
  `#/tables/${encodeURIComponent(schema)}/${encodeURIComponent(name)}`;

export const queryHref = (query: string): string => `#/query?query=${encodeURIComponent(query)}`;

export const newViewHref = ({ name = "", query }: { name?: string; query: string }): string =>
  `#/new?${new URLSearchParams({ name, query })}`;

export interface Example {
  name: string;
  query: string;
  /** What the query answers, in a sentence. */
  about: string;
}

const WORDS = /^(text|character|citext|boolean|name)/;
const SINGLE = /mail|url|phone|address|street|note|comment|descr|token|hash|uuid|password/i;
const GROUPS = /region|country|city|state|categor|kind|type|status|channel|level|tier/i;

/**
 * A view that groups the biggest table with a foreign key by a word of the table that it names, or
 * the biggest table by one of its own. of: this table. null: there is no table to read.
 */
export function exampleOf(tables: Table[], of?: Table): Example | null {
  const usable = tables.filter((table) => table.kind === "table" && !table.problem && table.fields.length > 0);
  const sized = usable.toSorted((a, b) => (b.rows ?? 0) - (a.rows ?? 0));
  const chosen = of ? [of] : sized;
  for (const table of chosen) {
    for (const reference of table.references) {
      const parent = usable.find((one) => one.schema === reference.schema && one.name === reference.table);
      if (parent && parent !== table) return joined(table, reference, parent);
    }
  }
  return chosen[0] ? alone(chosen[0]) : null;
}

function joined(table: Table, reference: Reference, parent: Table): Example {
  const [one, other] = aliases(table.name, parent.name);
  const label = wordOf(parent) ?? reference.references[0] ?? "";
  const measure = measureOf(table);
  const columns = [
    `${other}.${sqlWord(label)}`,
    `count(*) AS ${sqlWord(free(table.name, [label]))}`,
    ...(measure ? [`sum(${one}.${sqlWord(measure)}) AS ${sqlWord(free(measure, [label, table.name]))}`] : []),
  ];
  const on = reference.columns.map((column, i) => `${other}.${sqlWord(reference.references[i] ?? "")} = ${one}.${sqlWord(column)}`);
  return {
    name: nameOf(table.name, label),
    query: [
      `SELECT ${columns.join(",\n       ")}`,
      `FROM ${sqlTitle(table)} AS ${one}`,
      `JOIN ${sqlTitle(parent)} AS ${other} ON ${on.join(" AND ")}`,
      `GROUP BY ${other}.${sqlWord(label)}`,
    ].join("\n"),
    about: `The rows of ${table.name} by ${label} of ${parent.name}`,
  };
}

function alone(table: Table): Example {
  const label = wordOf(table);
  const measure = measureOf(table);
  const sum = measure ? [`sum(${sqlWord(measure)}) AS ${sqlWord(free(measure, [label ?? "", table.name]))}`] : [];
  const columns = [...(label ? [sqlWord(label)] : []), `count(*) AS ${sqlWord(free(table.name, [label ?? ""]))}`, ...sum];
  return {
    name: nameOf(table.name, label ?? "total"),
    query: [
      `SELECT ${columns.join(",\n       ")}`,
      `FROM ${sqlTitle(table)}`,
      ...(label ? [`GROUP BY ${sqlWord(label)}`] : []),
    ].join("\n"),
    about: label ? `The rows of ${table.name} by ${label}` : `How many rows ${table.name} has`,
  };
}

/** A column whose values are words that many rows share, as far as its name says. */
function wordOf(table: Table): string | undefined {
  const words = table.fields.filter((field) => WORDS.test(field.type) && !isOfKey(table, field.name));
  return (words.find((field) => GROUPS.test(field.name)) ?? words.find((field) => !SINGLE.test(field.name)))?.name;
}

/** A column to add up: a numeric one first, then an integer, then a float. */
function measureOf(table: Table): string | undefined {
  const free = table.fields.filter((field) => !isOfKey(table, field.name) && !/(^|_)id$/i.test(field.name));
  return [/^numeric/, /^(big|small)?int/, /^(real|double)/]
    .map((type) => free.find((field) => type.test(field.type)))
    .find((field) => field !== undefined)?.name;
}

function isOfKey(table: Table, column: string): boolean {
  return table.key.includes(column) || table.references.some((one) => one.columns.includes(column));
}

/** The first letters of the words of each name: ol for order_lines. */
function aliases(one: string, other: string): [string, string] {
  const [left = "t", right = "u"] = [one, other].map((name) => {
    const letters = name.toLowerCase().split(/[^a-z]+/).map((word) => word.slice(0, 1)).join("") || "t";
    return sqlWord(letters) === letters ? letters : `${letters}1`;
  });
  return left === right ? [`${left}1`, `${right}2`] : [left, right];
}

/** A name of a column that is none of the others. */
function free(name: string, others: string[]): string {
  return others.includes(name) ? `${name}_total` : name;
}

function nameOf(table: string, label: string): string {
  const plain = `${table}_by_${label}`.toLowerCase().replace(/[^a-z0-9_]+/g, "_");
  return plain.replace(/^[^a-z_]/, "v_").slice(0, 60);
}
