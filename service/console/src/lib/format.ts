// Readable figures and texts. Nothing here creates HTML.

const COUNT = new Intl.NumberFormat("en");
const NARROW = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NONE = "–";

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : COUNT.format(Math.round(value));
}

export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 10_000 ? count(value) : NARROW.format(value);
}

export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value > 0 && value < 0.1) return "<0.1";
  return value < 10 && value % 1 >= 0.05 ? value.toFixed(1) : compact(value);
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function millis(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return seconds(value / 1000);
}

/** The time from a commit until it is visible; empty while nothing was measured. */
export function freshness(value: number | null | undefined): string {
  return value ? millis(value) : NONE;
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 129_600) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86_400)} d`;
}

export function ago(iso: string | null | undefined, now = Date.now()): string {
  if (!iso) return NONE;
  return `${seconds(Math.max(1, (now - Date.parse(iso)) / 1000))} ago`;
}

export function clock(at: number): string {
  return new Date(at).toLocaleTimeString("en-GB", { hour12: false });
}

/** A value of a row as text; objects stay JSON. */
export function shown(value: unknown): string {
  if (typeof value === "string") return value;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export const SHORT = 160;

export function shortened(text: string, length = SHORT): string {
  return text.length > length ? `${[...text.slice(0, length)].join("")}…` : text;
}

export function plural(number: number, one: string, many = `${one}s`): string {
  return `${compact(number)} ${number === 1 ? one : many}`;
}
