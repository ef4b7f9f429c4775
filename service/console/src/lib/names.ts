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
