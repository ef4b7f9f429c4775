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

/** The name as REST's paths and the console's own addresses take it. */
export function titleOf(view: Named): string {
  const name = sqlName(view.name);
  return view.schema === "public" ? name : `${sqlName(view.schema)}.${name}`;
}

/** "schema.name" as the pipeline's figures call it. */
export const figureName = (view: Named): string => `${view.schema}.${view.name}`;
