// What the service tells of itself once a second (GET /overview), and what the console makes of
// it: rates, and their course over the last minutes. Asked only while someone looks.
import { signal } from "@preact/signals";
import { asProblem, call, needsToken, type Problem, role } from "./api";
import { figureName } from "./names";

export interface ToldError {
  title: string;
  code: string;
  detail?: string;
  hint?: string;
  position?: { line: number; column: number } | null;
}

export interface Backfill {
  phase?: string;
  road?: string;
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
  error: ToldError | null;
  created_at: string;
}

export interface SourceGlance {
  name: string;
  type: string;
  status: string;
  error: ToldError | null;
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
  error: ToldError | null;
  backlog_bytes: number | null;
  rows_total: number;
}

export interface Pipeline {
  group: string;
  is_up: boolean;
  started_at: number;
  updated_at: number;
  epochs_written_total: number;
  source_rows_total: number;
  transactions_total: number;
  rows_written_total: number;
  lag_bytes: number;
  freshness_ms: Record<string, number>;
  step_ms: Record<string, number>;
  rss_peak_bytes: number;
  wal_kept_bytes: number | null;
  wal_budget_bytes: number | null;
  sink_stalled_s: number;
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
}

const KEPT_POINTS = 180;
const EVERY_MS = 1000;

/** The course of one figure: the newest points, one for each answer. */
export interface Course {
  at: number[];
  value: number[];
}

export const overview = signal<Overview | null>(null);
export const unreachable = signal<Problem | null>(null);
const courses = new Map<string, Course>();
const totals = new Map<string, { at: number; total: number }>();

export function courseOf(name: string): Course {
  return courses.get(name) ?? { at: [], value: [] };
}

export function newest(name: string): number | null {
  return courses.get(name)?.value.at(-1) ?? null;
}

function note(name: string, at: number, value: number): void {
  let course = courses.get(name);
  if (!course) courses.set(name, (course = { at: [], value: [] }));
  course.at.push(at);
  course.value.push(value);
  if (course.at.length > KEPT_POINTS) {
    course.at.shift();
    course.value.shift();
  }
}

/** A counter's rate since its last look; a counter that begins again gives none. */
function noteRate(name: string, at: number, total: number): void {
  const before = totals.get(name);
  if (before && at <= before.at) return;
  totals.set(name, { at, total });
  if (!before || total < before.total || at - before.at > 30) return;
  note(name, at, (total - before.total) / (at - before.at));
}

export function take(answer: Overview): void {
  let all = 0;
  for (const view of answer.views) {
    noteRate(`view ${figureName(view)}`, answer.at, view.changes_total);
    all += view.changes_total;
  }
  noteRate("views", answer.at, all);
  for (const source of answer.sources) noteRate(`source ${source.name}`, answer.at, source.records_total);
  for (const sink of answer.sinks) noteRate(`sink ${sink.view} ${sink.name}`, answer.at, sink.rows_total);
  for (const told of answer.pipelines) {
    if (!told.is_up) continue;
    const { group } = told;
    noteRate(`epochs ${group}`, told.updated_at, told.epochs_written_total);
    noteRate(`rows ${group}`, told.updated_at, told.source_rows_total);
    note(`p50 ${group}`, answer.at, told.freshness_ms.p50 ?? 0);
    note(`p99 ${group}`, answer.at, told.freshness_ms.p99 ?? 0);
    note(`memory ${group}`, answer.at, told.rss_peak_bytes);
    note(`lag ${group}`, answer.at, told.lag_bytes);
    if (told.wal_kept_bytes !== null) note(`wal ${group}`, answer.at, told.wal_kept_bytes);
  }
  role.value = answer.role;
  overview.value = answer;
}

export async function look(): Promise<void> {
  if (needsToken.value) return;
  try {
    take(await call<Overview>("GET", "/overview"));
    unreachable.value = null;
  } catch (error) {
    unreachable.value = asProblem(error);
  }
}

export function start(): void {
  const again = async (): Promise<void> => {
    if (!document.hidden) await look();
    setTimeout(again, EVERY_MS);
  };
  void again();
  document.addEventListener("visibilitychange", () => void (document.hidden || look()));
}
