// Options as JSON Schemas (connectors/option_schema.py): what a form edits, and the JSON of it.
// A form's state holds texts as they are typed. Empty ones are left out of the JSON, so that the
// service's own defaults apply.
import { Problem } from "./api";

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  enum?: string[];
  examples?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: Schema | boolean;
  items?: Schema;
  anyOf?: Schema[];
  minimum?: number;
  maximum?: number;
  deprecated?: boolean;
  "x-secret"?: boolean;
  "x-unit"?: string;
  "x-advanced"?: boolean;
  "x-json"?: "json" | "text";
  "x-short"?: string;
  "x-lines"?: number;
  "x-promise"?: string;
}

export type Kind = "group" | "named" | "pairs" | "rows" | "texts" | "json" | "choice" | "flag" | "number" | "text";

export interface Entry {
  name: string;
  value: State;
}

export type State = undefined | string | boolean | State[] | Entry[] | { [option: string]: State };

export type GroupState = { [option: string]: State };

export function typeOf(schema: Schema): string {
  return (Array.isArray(schema.type) ? schema.type[0] : schema.type) ?? "";
}

export function kindOf(schema: Schema): Kind {
  if (schema["x-json"]) return "json";
  if (schema.enum) return "choice";
  if (schema.properties) return "group";
  const type = typeOf(schema);
  if (type === "object") return isGroup(schema.additionalProperties) ? "named" : "pairs";
  if (type === "array") return isGroup(schema.items) ? "rows" : "texts";
  return type === "boolean" ? "flag" : type === "integer" || type === "number" ? "number" : "text";
}

function isGroup(schema: Schema | boolean | undefined): schema is Schema {
  return typeof schema === "object" && schema.properties !== undefined;
}

export function itemOf(schema: Schema): Schema {
  const item = schema.items ?? schema.additionalProperties;
  return typeof item === "object" ? item : {};
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The state of a form for a value of JSON, in any shape that the service accepts. */
export function stateOf(schema: Schema, value: unknown): State {
  if (value === undefined || value === null) return undefined;
  const item = itemOf(schema);
  switch (kindOf(schema)) {
    case "group": {
      const short = schema["x-short"];
      if (!isObject(value)) return value === false ? undefined : short ? { [short]: stateOf({}, value) } : {};
      const options = Object.entries(schema.properties ?? {});
      return Object.fromEntries(options.map(([name, one]) => [name, stateOf(one, value[name])]));
    }
    case "named":
      return entriesOf(item, value).map(([name, one]) => ({ name, value: stateOf(item, one) ?? {} }));
    case "pairs":
      return isObject(value) ? Object.entries(value).map(([name, one]) => ({ name, value: String(one) })) : [];
    case "rows":
      return rowsOf(value).map((one) => stateOf(item, one) ?? {});
    case "texts":
      return Array.isArray(value) ? value.join(", ") : String(value);
    case "json":
      return schema["x-json"] === "text" && typeof value === "string" ? value : JSON.stringify(value, null, 2);
    case "flag":
      return value === true;
    default:
      return Array.isArray(value) ? value.join(",") : String(value);
  }
}

/** Tables may be given as a list of names, and then each is a relation of its last name. */
function entriesOf(item: Schema, value: unknown): [string, unknown][] {
  const [first] = item.required ?? [];
  const full = (one: unknown): unknown => (typeof one === "string" && first ? { [first]: one } : one);
  if (Array.isArray(value)) return value.map((one) => [String(one).split(".").at(-1) ?? "", full(one)]);
  return isObject(value) ? Object.entries(value).map(([name, one]) => [name, full(one)]) : [];
}

/** Columns may be given as types by name. */
function rowsOf(value: unknown): unknown[] {
  if (Array.isArray(value)) return value;
  return isObject(value) ? Object.entries(value).map(([name, type]) => ({ name, type })) : [];
}

/** The JSON of a form's state; undefined if nothing was filled in. Problem: a text is not JSON. */
export function jsonOf(schema: Schema, state: State, path = ""): unknown {
  if (state === undefined || state === "") return undefined;
  const item = itemOf(schema);
  switch (kindOf(schema)) {
    case "group": {
      const group = state as GroupState;
      const options = Object.entries(schema.properties ?? {});
      const found = options.map(([name, one]) => [name, jsonOf(one, group[name], joined(path, name))] as const);
      return Object.fromEntries(found.filter(([, one]) => one !== undefined));
    }
    case "named": {
      const entries = state as Entry[];
      const found: Record<string, unknown> = {};
      entries.forEach((one, i) => {
        const at = entryPath(path, entries, i);
        if (!one.name.trim()) throw new Problem(0, "console.no_name", "a name is missing", "", "", null, at);
        if (one.name in found) throw new Problem(0, "console.same_name", "two have the same name", "", "", null, at);
        found[one.name] = jsonOf(item, one.value, at) ?? {};
      });
      return entries.length ? found : undefined;
    }
    case "pairs": {
      const entries = (state as Entry[]).filter((one) => one.name);
      return entries.length ? Object.fromEntries(entries.map((one) => [one.name, one.value ?? ""])) : undefined;
    }
    case "rows": {
      const rows = (state as State[]).map((one, i) => jsonOf(item, one, joined(path, String(i))));
      const filled = rows.filter((one) => isObject(one) && Object.keys(one).length > 0);
      return filled.length ? filled : undefined;
    }
    case "texts": {
      const texts = String(state).split(",").map((one) => one.trim()).filter(Boolean);
      return texts.length ? texts : undefined;
    }
    case "number": {
      const text = String(state).trim();
      const number = Number(text);
      return text === "" ? undefined : Number.isNaN(number) ? text : number;
    }
    case "json":
      return parsed(schema, String(state), path);
    default:
      return state;
  }
}

function parsed(schema: Schema, text: string, path: string): unknown {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    if (schema["x-json"] === "text") return text.trim();
    throw new Problem(0, "console.not_json", "this is not JSON", String(error), "texts are in double quotes", null, path);
  }
}

export const joined = (path: string, name: string): string => (path ? `${path}.${name}` : name);

/** The path of a named object: by its name, or by its number while it has no name of its own. */
export function entryPath(path: string, entries: Entry[], at: number): string {
  const name = entries[at]?.name ?? "";
  const isFirst = name !== "" && entries.findIndex((one) => one.name === name) === at;
  return joined(path, isFirst ? name : `#${at}`);
}

export interface Shown {
  path: string;
  isFilled: boolean;
}

/** All options that a form shows, outer ones first. */
export function shownOf(schema: Schema, state: State, path = ""): Shown[] {
  const item = itemOf(schema);
  const inner: Shown[] = [];
  const kind = kindOf(schema);
  if (kind === "group" && state !== undefined) {
    for (const [name, one] of Object.entries(schema.properties ?? {})) {
      inner.push(...shownOf(one, (state as GroupState)[name], joined(path, name)));
    }
  } else if (kind === "named") {
    const entries = (state as Entry[] | undefined) ?? [];
    entries.forEach((one, i) => inner.push(...shownOf(item, one.value, entryPath(path, entries, i))));
  }
  return path ? [{ path, isFilled: isFilled(schema, state) }, ...inner] : inner;
}

/**
 * Which option of a form a path of the service means: one of that path or with that end, rather one
 * that is filled in; else the innermost one around it.
 */
export function located(options: Shown[], path: string): string | null {
  const ending = options.filter((one) => one.path === path || one.path.endsWith(`.${path}`));
  const found = ending.find((one) => one.isFilled) ?? ending.at(-1);
  if (found) return found.path;
  const around = options.filter((one) => path.startsWith(`${one.path}.`));
  return around.toSorted((a, b) => b.path.length - a.path.length)[0]?.path ?? null;
}

/** Whether anything was filled in. */
export function isFilled(schema: Schema, state: State): boolean {
  if (state === undefined || state === "") return false;
  if (Array.isArray(state)) return state.length > 0;
  if (typeof state !== "object") return true;
  return Object.entries(schema.properties ?? {}).some(([name, one]) => isFilled(one, state[name])) || schema["x-short"] !== undefined;
}
