// The service's overview, once a second (GET /overview), with rates and their series over the last
// minutes. Polled only while the page is visible.
import { signal } from "@preact/signals";
import { asProblem, call, needsToken, type Problem, role } from "./api";
import { figureName } from "./names";

export interface ReportedError {
  title: string;
  code: string;
  detail?: string;
  hint?: string;
  position?: { line: number; column: number } | null;
}

export interface Backfill {
  phase?: string;
  engine?: string;
  parts_done?: number;
  parts_total?: number;
  rows?: number;
  bytes?: number;
  elapsed_s?: number;
  remaining_s?: number | null;
  [other: string]: unknown;
}

export interface ViewGlance {
  name: string;
  schema: string;
  status: string;
  kind: string;
  group: string;
  rows: number | null;
  changes_total: number;
  lag_bytes: number | null;
  errors: number;
  backfill: Backfill | null;
  error: ReportedError | null;
  created_at: string;
}

export interface SourceGlance {
  name: string;
  type: string;
  status: string;
  error: ReportedError | null;
  lag: number | null;
  records_total: number;
  dead_letters: number;
  relations: string[];
}

export interface SinkGlance {
  name: string;
  view: string;
  type: string;
  status: string;
  error: ReportedError | null;
  backlog_bytes: number | null;
  rows_total: number;
}

export interface Pipeline {
  group: string;
  is_up: boolean;
  status: string;
  error: ReportedError | null;
  started_at: number;
  updated_at: number;
  epochs_written_total: number;
  source_rows_total: number;
  transactions_total: number;
  rows_written_total: number;
  lag_bytes: number;
  freshness_ms: Record<string, number>;
  step_ms: Record<string, number>;
  lag_seconds: number | null;
  rss_bytes: number | null;
  rss_peak_bytes: number;
  wal_retained_bytes: number | null;
  wal_budget_bytes: number | null;
  sink_stalled_s: number;
}

interface Past {
  group: string;
  at: number[];
  totals: Record<string, (number | null)[]>;
  gauges: Record<string, (number | null)[]>;
}

export interface Overview {
  at: number;
  status: string;
  reasons: string[];
  role: string;
  views: ViewGlance[];
  sources: SourceGlance[];
  sinks: SinkGlance[];
  pipelines: Pipeline[];
  history: Past[];
}

const KEPT_POINTS = 180;
const EVERY_MS = 1000;

/** The series of one figure: the newest points, one for each answer. */
export interface Series {
  at: number[];
  value: number[];
}

export const overview = signal<Overview | null>(null);
export const unreachable = signal<Problem | null>(null);
const allSeries = new Map<string, Series>();
const totals = new Map<string, { at: number; total: number }>();

export function seriesOf(name: string): Series {
  return allSeries.get(name) ?? { at: [], value: [] };
}

const SMOOTHED = 3;

/** The newest figure, averaged over the last points for reading. */
export function newest(name: string): number | null {
  const last = allSeries.get(name)?.value.slice(-SMOOTHED) ?? [];
  return last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : null;
}

function note(name: string, at: number, value: number): void {
  let series = allSeries.get(name);
  if (!series) allSeries.set(name, (series = { at: [], value: [] }));
  if (at <= (series.at.at(-1) ?? 0)) return;
  series.at.push(at);
  series.value.push(value);
  if (series.at.length > KEPT_POINTS) {
    series.at.shift();
    series.value.shift();
  }
}

/** A counter's rate since its last refresh; none after a reset. */
function noteRate(name: string, at: number, total: number): void {
  const before = totals.get(name);
  if (before && at <= before.at) return;
  totals.set(name, { at, total });
  if (!before || total < before.total || at - before.at > 30) return;
  note(name, at, (total - before.total) / (at - before.at));
}

/** The history from before this page was opened. */
function takePast(past: Past): void {
  past.at.forEach((at, i) => {
    for (const [name, values] of Object.entries(past.totals)) {
      const value = values[i];
      if (typeof value === "number") noteRate(name, at, value);
    }
    for (const [name, values] of Object.entries(past.gauges)) {
      const value = values[i];
      if (typeof value === "number") note(name, at, value);
    }
  });
}

export function take(answer: Overview): void {
  for (const past of answer.history) takePast(past);
  // Counters are as old as the pipeline's last report, not as this answer.
  const reported = new Map(answer.pipelines.map((reported) => [reported.group, reported.updated_at]));
  const first = reported.get("default") ?? answer.at;
  for (const view of answer.views) {
    noteRate(`view ${figureName(view)}`, reported.get(view.group) ?? first, view.changes_total);
  }
  for (const source of answer.sources) noteRate(`source ${source.name}`, first, source.records_total);
  for (const sink of answer.sinks) noteRate(`sink ${sink.view}/${sink.name}`, first, sink.rows_total);
  for (const reported of answer.pipelines) {
    if (!reported.is_up) continue;
    const { group, updated_at: at } = reported;
    if (at <= (totals.get(`epochs ${group}`)?.at ?? 0)) continue;
    noteRate(`epochs ${group}`, at, reported.epochs_written_total);
    noteRate(`rows ${group}`, at, reported.source_rows_total);
    note(`p50 ${group}`, at, reported.freshness_ms.p50 ?? 0);
    note(`p99 ${group}`, at, reported.freshness_ms.p99 ?? 0);
    note(`memory ${group}`, at, reported.rss_bytes ?? reported.rss_peak_bytes);
    if (reported.lag_seconds !== null) note(`late ${group}`, at, reported.lag_seconds);
    note(`lag ${group}`, at, reported.lag_bytes);
    if (reported.wal_retained_bytes !== null) note(`wal ${group}`, at, reported.wal_retained_bytes);
  }
  sumUp(answer.views.map((view) => `view ${figureName(view)}`));
  role.value = answer.role;
  overview.value = answer;
}

/** The series of all views together: their rates at the points of the one that has the most. */
function sumUp(names: string[]): void {
  const each = names.map((name) => seriesOf(name)).filter((series) => series.at.length);
  const longest = each.toSorted((a, b) => b.at.length - a.at.length)[0];
  if (!longest) return;
  const value = longest.at.map((at) =>
    each.reduce((sum, series) => {
      const i = series.at.findLastIndex((when) => when <= at + 0.5);
      return sum + (i >= 0 && at - (series.at[i] ?? 0) < 5 ? (series.value[i] ?? 0) : 0);
    }, 0),
  );
  allSeries.set("views", { at: longest.at, value });
}

export async function refresh(): Promise<void> {
  if (needsToken.value) return;
  try {
    take(await call<Overview>("GET", allSeries.size ? "/overview" : "/overview?history=true"));
    unreachable.value = null;
  } catch (error) {
    unreachable.value = asProblem(error);
  }
}

export function start(): void {
  const again = async (): Promise<void> => {
    if (!document.hidden) await refresh();
    setTimeout(again, EVERY_MS);
  };
  void again();
  document.addEventListener("visibilitychange", () => void (document.hidden || refresh()));
}
