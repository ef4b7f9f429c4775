// Every call of the console goes through `call`, which adds the token and turns problem+json into a
// Problem. Controls for routes that the service lacks (/openapi.json) are not shown.
import { signal } from "@preact/signals";
import type { Schema } from "./schema";

export interface Position {
  line: number;
  column: number;
}

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail = "",
    readonly hint = "",
    readonly position: Position | null = null,
    /** The path of the option that is wrong. */
    readonly option = "",
  ) {
    super(title);
  }
}

const STORAGE_KEY = "tidemark.token";

export const token = signal(sessionStorage.getItem(STORAGE_KEY) ?? "");
/** Set when the service answered 401: the console asks for a token. */
export const needsToken = signal(false);
export const routes = signal<ReadonlySet<string> | null>(null);
/** The role that the service reported: reader, operator or admin; empty before. */
export const role = signal("");

export function keepToken(value: string): void {
  if (value) sessionStorage.setItem(STORAGE_KEY, value);
  else sessionStorage.removeItem(STORAGE_KEY);
  token.value = value;
  needsToken.value = false;
}

export function mayAdminister(): boolean {
  return role.value === "admin";
}

export function mayOperate(): boolean {
  return role.value === "operator" || role.value === "admin";
}

export function headersOf(): Record<string, string> {
  return token.value ? { Authorization: `Bearer ${token.value}` } : {};
}

export async function call<T>(
  method: string,
  path: string,
  body?: unknown,
  abort?: AbortSignal,
  parse: (text: string) => unknown = JSON.parse,
): Promise<T> {
  const headers = headersOf();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: abort,
      cache: "no-store",
    });
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new Problem(0, "console.unreachable", "the service does not answer", "", "is it running?");
  }
  if (!answer.ok) throw await problemOf(answer);
  const text = await answer.text();
  return (text ? parse(text) : undefined) as T;
}

export async function problemOf(answer: Response): Promise<Problem> {
  if (answer.status === 401) needsToken.value = true;
  try {
    const reported = await answer.json();
    return new Problem(
      answer.status,
      String(reported.code ?? "internal"),
      String(reported.title ?? answer.statusText),
      reported.detail ?? "",
      reported.hint ?? "",
      reported.position ?? null,
      reported.option ?? "",
    );
  } catch {
    return new Problem(answer.status, "internal", answer.statusText || `HTTP ${answer.status}`);
  }
}

export function asProblem(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, "console.error", String(error));
}

interface OpenApi {
  paths: Record<string, Record<string, unknown>>;
  components?: { schemas?: Record<string, Schema> };
}

const OPTIONS_BY_TYPE = "x-options-by-type";
const schemas = signal<Record<string, Schema>>({});

/** The schema of each type's options, of a request such as CreateSource. */
export function optionSchemas(request: string): Record<string, Schema> {
  const options = schemas.value[request]?.properties?.options as Record<string, unknown> | undefined;
  const named = Object.entries((options?.[OPTIONS_BY_TYPE] ?? {}) as Record<string, string>);
  return Object.fromEntries(named.map(([type, at]) => [type, schemas.value[at.split("/").at(-1) ?? ""] ?? {}]));
}

/** The schema of a request's body, or of a part of it, such as ViewOptions. */
export function bodySchema(name: string): Schema {
  const { properties = {}, ...rest } = schemas.value[name] ?? {};
  return { ...rest, properties: Object.fromEntries(Object.entries(properties).map(([option, one]) => [option, present(one)])) };
}

/** An option that may be null as one that may be left out; objects with any names as such. */
function present({ anyOf, default: value, ...schema }: Schema): Schema {
  const found = anyOf?.find((one) => one.type !== "null") ?? {};
  return { ...found, ...schema, ...(value === null || value === undefined ? {} : { default: value }) };
}

export async function learnRoutes(): Promise<void> {
  try {
    const reported = await call<OpenApi>("GET", "/openapi.json");
    const found = new Set<string>();
    for (const [path, methods] of Object.entries(reported.paths)) {
      const plain = path.replace(/\{\w+\}/g, "{}");
      for (const method of Object.keys(methods)) found.add(`${method.toUpperCase()} ${plain}`);
    }
    schemas.value = reported.components?.schemas ?? {};
    routes.value = found;
  } catch {
    routes.value = null;
  }
}

/** Whether the service has a route, as "POST /views/{}/pause"; true while unknown. */
export function offers(route: string): boolean {
  return routes.value === null || routes.value.has(route);
}

export const viewPath = (name: string): string => `/views/${encodeURIComponent(name)}`;
