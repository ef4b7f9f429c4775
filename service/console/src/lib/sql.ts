// SQL for display: keywords, strings, numbers and comments are highlighted, and a query on one line
// is split by its clauses. It is never sent.

export type Kind = "word" | "name" | "text" | "number" | "comment" | "sign" | "space";
export interface Token {
  kind: Kind;
  text: string;
}

const TOKEN =
  /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|((?:[eEbBxX]|[uU]&)?'(?:[^']|'')*(?:'|$)|\$(\w*)\$[\s\S]*?(?:\$\3\$|$))|("(?:[^"]|"")*(?:"|$))|(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|([\p{L}_][\p{L}\p{N}_$]*)|(\s+)|([\s\S])/gu;

const WORDS = new Set(
  ("all and any array as asc between by case cast collate cross cube current desc distinct else end " +
    "except exists false fetch filter first following for from full group grouping having in " +
    "inner intersect interval into is isnull join last lateral left like ilike limit materialized " +
    "natural not notnull null nulls offset on only or order ordinality outer over overlaps " +
    "partition preceding range recursive right rollup row rows select sets similar some " +
    "tablesample then ties to true unbounded union unknown using values when where window with " +
    "within without").split(" "),
);

export function tokensOf(sql: string): Token[] {
  return [...sql.matchAll(TOKEN)].map((found) => {
    const text = found[0];
    if (found[1] !== undefined) return { kind: "comment", text };
    if (found[2] !== undefined) return { kind: "text", text };
    if (found[4] !== undefined) return { kind: "name", text };
    if (found[5] !== undefined) return { kind: "number", text };
    if (found[6] !== undefined) return { kind: WORDS.has(text.toLowerCase()) ? "word" : "name", text };
    return { kind: found[7] !== undefined ? "space" : "sign", text };
  });
}

const BREAKS = new Set(
  "from where group having order limit offset fetch window union intersect except".split(" "),
);
const JOINS = new Set("join inner left right full cross natural".split(" "));

/** A query on one line, with a line for each clause; a query with line breaks is unchanged. */
export function laidOut(sql: string): string {
  if (sql.trim().includes("\n")) return sql.trim();
  const all = tokensOf(sql.trim());
  const words = all.map((t) => (t.kind === "word" || t.kind === "name" ? t.text.toLowerCase() : t.text));
  const previous = (at: number): string => {
    let i = at - 1;
    while (i >= 0 && all[i]?.kind === "space") i -= 1;
    return words[i] ?? "";
  };
  let depth = 0;
  let out = "";
  all.forEach((token, at) => {
    const word = words[at] ?? "";
    if (word === "(") depth += 1;
    if (word === ")") depth -= 1;
    const isPart = token.kind === "word" && depth === 0;
    const isFrom = word === "from" && previous(at) === "distinct";
    if (isPart && BREAKS.has(word) && !isFrom) out = `${out.trimEnd()}\n`;
    else if (isPart && JOINS.has(word) && !JOINS.has(previous(at)) && previous(at) !== "outer") {
      if (nextWord(words, all, at) !== "(") out = `${out.trimEnd()}\n  `;
    } else if (isPart && word === "select" && ["union", "all", "intersect", "except", ")"].includes(previous(at))) {
      out = `${out.trimEnd()}\n`;
    }
    out += token.kind === "space" ? " " : token.text;
  });
  return out.trim();
}

function nextWord(words: string[], all: Token[], at: number): string {
  let i = at + 1;
  while (all[i]?.kind === "space") i += 1;
  return words[i] ?? "";
}
