// One view: its status, and its parts as tabs.
import { call, mayOperate, offers, viewPath } from "../lib/api";
import { compact, count, freshness, millis, rate } from "../lib/format";
import { moveFocus, useKeys } from "../lib/keys";
import { seriesOf, newest, overview, type Backfill, type ReportedError } from "../lib/live";
import { figureName, titleOf } from "../lib/names";
import { address, go, viewHref } from "../lib/router";
import { usePolled, useWork } from "../lib/use";
import { ReplacingNote } from "../parts/replacing";
import { BackfillNote } from "../parts/backfill";
import { Figure, ProblemNote, Skeleton, Status, Text } from "../parts/basic";
import { Sparkline } from "../parts/charts";
import { later } from "../parts/later";
import { RebuildButton } from "../parts/rebuild";
import { RetryButton } from "../parts/source_retry";
import { tell } from "../parts/toasts";
import { lagText } from "./list";
import { ChangesTab } from "./view_changes";
import { ManageTab } from "./view_manage";
import { ProblemsTab } from "./view_problems";
import { RowsTab } from "./view_rows";
import { SqlTab } from "./view_sql";
import { UseTab } from "./view_use";

const SinksTab = later(() => import("./view_sinks").then((m) => m.SinksTab), 3);
const DataflowTab = later(() => import("./view_dataflow").then((m) => m.DataflowTab), 6);

export interface Field {
  name: string;
  type: string;
  nullable: boolean;
}

export interface ViewFacts {
  name: string;
  schema: string;
  query: string;
  status: string;
  kind: string;
  key: string[];
  fields: Field[];
  options: Record<string, unknown>;
  group: string;
  warnings: string[];
  rows: number | null;
  positions: Record<string, string>;
  lag_bytes: number | null;
  backfill: Backfill | null;
  plan: string;
  errors: number;
  late_rows?: number;
  watermarks?: Record<string, string>;
  history?: { table: string; retained_s: number; oldest_epoch: number; oldest_at: string } | null;
  error: ReportedError | null;
  created_at: string;
  live_at: string | null;
  replacing?: Replacing | null;
}

/** The change in progress, or why the last one failed or was cancelled. */
export interface Replacing {
  kind: string;
  status: string;
  query?: string;
  warnings?: string[];
  progress?: Backfill | null;
  code?: string;
  title?: string;
  detail?: string;
  hint?: string;
}

export interface TabProps {
  name: string;
  view: ViewFacts;
  again: () => void;
}

interface Tab {
  id: string;
  label: string;
  route?: string;
  show: (props: TabProps) => preact.ComponentChild;
}

const TABS: Tab[] = [
  { id: "rows", label: "Rows", route: "GET /views/{}/rows", show: (p) => <RowsTab {...p} /> },
  { id: "changes", label: "Changes", route: "GET /views/{}/changes", show: (p) => <ChangesTab {...p} /> },
  {
    id: "dataflow", label: "Dataflow", route: "GET /views/{}/dataflow",
    show: (p) => <DataflowTab {...p} />,
  },
  {
    id: "sinks", label: "Sinks", route: "GET /views/{}/sinks",
    show: (p) => <SinksTab {...p} />,
  },
  { id: "sql", label: "SQL", show: (p) => <SqlTab {...p} /> },
  { id: "problems", label: "Problems", show: (p) => <ProblemsTab {...p} /> },
  { id: "use", label: "Use", show: (p) => <UseTab {...p} /> },
  { id: "manage", label: "Manage", show: (p) => <ManageTab {...p} /> },
];

export function ViewScreen({ name }: { name: string }) {
  const { value: view, problem, again } = usePolled<ViewFacts>(viewPath(name), 2000);
  const tabs = TABS.filter((tab) => (tab.route ? offers(tab.route) : tab.id !== "manage" || mayOperate()));
  const here = tabs.find((tab) => tab.id === address.value.tab) ?? tabs[0];
  const move = (step: number) => () => {
    const next = tabs[(tabs.findIndex((tab) => tab === here) + step + tabs.length) % tabs.length];
    if (next) go(viewHref(name, next.id));
  };
  useKeys({
    "[": move(-1),
    "]": move(1),
    j: () => moveFocus("[data-row]", 1),
    k: () => moveFocus("[data-row]", -1),
  });
  if (!view) {
    return (
      <div class="screen">
        <Crumbs />
        <div class="title"><h1><Text>{name}</Text></h1></div>
        {problem ? <ProblemNote problem={problem} /> : <Skeleton rows={6} wide />}
      </div>
    );
  }
  const badge = view.errors + (view.error ? 1 : 0);
  return (
    <div class="screen">
      <Crumbs />
      <Head view={view} name={name} again={again} isDropped={problem?.status === 404} />
      <nav class="tabs" aria-label="Parts of the view">
        {tabs.map((tab) => (
          <a key={tab.id} href={viewHref(name, tab.id)} aria-current={tab === here ? "page" : undefined}>
            {tab.label}
            {tab.id === "problems" && badge > 0 && <span class="tag bad">{compact(badge)}</span>}
          </a>
        ))}
      </nav>
      <div class="tab">{here?.show({ name, view, again })}</div>
    </div>
  );
}

function Crumbs() {
  return <nav class="crumbs" aria-label="Breadcrumb"><a href="#/">Views</a></nav>;
}

function Head({ view, name, again, isDropped }: TabProps & { isDropped: boolean }) {
  const glance = overview.value?.views.find((v) => v.name === view.name && v.schema === view.schema);
  const pipeline = overview.value?.pipelines.find((p) => p.group === view.group);
  const status = isDropped ? "dropped" : (glance?.status ?? view.status);
  const series = `view ${figureName(view)}`;
  const error = glance ? glance.error : view.error;
  const backfill = glance?.backfill ?? view.backfill;
  const least = Object.values(view.watermarks ?? {}).sort()[0];
  const isBuilding = backfill && !["live", "failed", "paused", "dropped"].includes(status);
  return (
    <>
      <div class="title">
        <h1 title={titleOf(view)}><Text>{titleOf(view)}</Text></h1>
        <Status status={status} />
        {view.group !== "default" && <span class="tag">group {view.group}</span>}
        <Pause view={view} name={name} status={status} again={again} />
      </div>
      {error && (
        <>
          <ProblemNote problem={error} what={wordsFor(status)} />
          <WaysOut view={view} status={status} again={again} />
        </>
      )}
      {isBuilding && <BackfillNote backfill={backfill} />}
      {view.replacing && <ReplacingNote name={name} reported={view.replacing} again={again} />}
      <dl class="figures">
        <Figure label="Rows" note={view.kind === "multiset" ? "multiset: duplicates counted" : `key: ${view.key.join(", ") || "one row"}`}>
          {compact(glance?.rows ?? view.rows)}
        </Figure>
        <Figure label="Changes a second" note={<Sparkline series={seriesOf(series)} label="changes of this view" />}>
          {status === "live" ? rate(newest(series)) : "–"}
        </Figure>
        <Figure label="Freshness, p50" note={pipeline?.freshness_ms.p99 ? `p99 ${millis(pipeline.freshness_ms.p99)}` : "no change yet"}>
          {status === "live" ? freshness(pipeline?.freshness_ms.p50) : "–"}
        </Figure>
        <Figure label="Lag" note={view.errors ? `${count(view.errors)} error rows` : "no error rows"}>
          {status === "live" ? lagText(glance?.lag_bytes ?? view.lag_bytes, view.group) : "–"}
        </Figure>
        {least && (
          <Figure label="Watermark" note={view.late_rows ? `${count(view.late_rows)} late rows` : "no late rows"}>
            {least.slice(0, 19).replace("T", " ")}
          </Figure>
        )}
      </dl>
    </>
  );
}

/** What an error means for a view of this status. */
export function wordsFor(status: string): string {
  if (status === "failed") return "This view has failed";
  return status === "degraded" ? "This view is not being updated" : "A source of this view is not available";
}

/** The possible actions: rebuild the view, or retry its stopped sources. */
export function WaysOut({ view, status, again }: { view: ViewFacts; status: string; again: () => void }) {
  const stopped = (overview.value?.sources ?? []).filter((s) => s.status !== "running");
  const isOfSource = status !== "failed" && stopped.some((s) => s.error?.code === view.error?.code);
  return (
    <p class="actions">
      {status === "failed" && <RebuildButton title={titleOf(view)} again={again} />}
      {isOfSource && stopped.map((s) => (
        <span key={s.name}>
          <a href={`#/sources/${encodeURIComponent(s.name)}`}>Source <Text>{s.name}</Text></a> <RetryButton name={s.name} again={again} />
        </span>
      ))}
    </p>
  );
}

function Pause({ name, status, again }: TabProps & { status: string }) {
  const { isBusy, run, problem } = useWork();
  const action = status === "paused" ? "resume" : "pause";
  if (!["live", "paused"].includes(status) || !mayOperate() || !offers(`POST /views/{}/${action}`)) return null;
  const turn = (): void => {
    void run(async () => {
      await call("POST", `${viewPath(name)}/${action}`);
      tell(action === "pause" ? "The view is being paused" : "The view is being resumed");
      again();
    });
  };
  return (
    <span class="end">
      {problem && <span class="bad"><Text>{problem.title}</Text></span>}
      <button type="button" class="small" disabled={isBusy} onClick={turn}>{action === "pause" ? "Pause" : "Resume"}</button>
    </span>
  );
}
