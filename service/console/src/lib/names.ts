// Names as SQL and as paths write them.

const PLAIN = /^[a-z_][a-z0-9_$]*$/;

export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

export function sqlName(name: string): string {
  return PLAIN.test(name) ? name : quoted(name);
}

export interface Named {
  schema: string;
  name: string;
}

/** The name in REST paths and the console's URLs. */
export function titleOf(view: Named): string {
  const name = sqlName(view.name);
  return view.schema === "public" ? name : `${sqlName(view.schema)}.${name}`;
}

/** "schema.name", as in the pipeline's figures. */
export const figureName = (view: Named): string => `${view.schema}.${view.name}`;

// PostgreSQL's reserved words, which no name can be without quotes.
const RESERVED = new Set(
  ("all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation " +
    "column concurrently constraint create cross current_catalog current_date current_role current_schema " +
    "current_time current_timestamp current_user default deferrable desc distinct do else end except false fetch " +
    "for foreign freeze from full grant group having ilike in initially inner intersect into is isnull join " +
    "lateral leading left like limit localtime localtimestamp natural not notnull null offset on only or order " +
    "outer overlaps placing primary references returning right select session_user similar some symmetric " +
    "system_user table tablesample then to trailing true union unique user using variadic verbose when where " +
    "window with").split(" "),
);

/** A name as a query has to write it. */
export function sqlWord(name: string): string {
  return RESERVED.has(name) ? quoted(name) : sqlName(name);
}

/** The name of a table in a query. */
export function sqlTitle({ schema, name }: Named): string {
  return schema === "public" ? sqlWord(name) : `${sqlWord(schema)}.${sqlWord(name)}`;
}
