// All views at a glance, with their sources and sinks.
import { useRef, useState } from "preact/hooks";
import { mayOperate, offers } from "../lib/api";
import { bytes, compact, count, freshness, millis, plural, rate, seconds } from "../lib/format";
import { moveFocus, useKeys } from "../lib/keys";
import { seriesOf, newest, overview, type Overview, type SinkGlance, type ViewGlance } from "../lib/live";
import { figureName, titleOf } from "../lib/names";
import { viewHref } from "../lib/router";
import { Bar, Figure, Skeleton, Status, Text } from "../parts/basic";
import { Sparkline } from "../parts/charts";
import { later } from "../parts/later";
import { shareOf } from "../parts/backfill";
import { RebuildButton } from "../parts/rebuild";
import { RetryButton } from "../parts/source_retry";

const Welcome = later(() => import("./welcome").then((m) => m.Welcome));

type Sorting = "trouble" | "name" | "status" | "rows" | "rate" | "lag";

const COLUMNS: { by: Sorting | null; label: string; class: string }[] = [
  { by: "name", label: "View", class: "name" },
  { by: "status", label: "Status", class: "" },
  { by: "rows", label: "Rows", class: "number" },
  { by: "rate", label: "Changes/s", class: "number" },
  { by: null, label: "Last 2 minutes", class: "series wide-only" },
  { by: "lag", label: "Lag", class: "number wide-only" },
];

const rateOf = (view: ViewGlance): number => newest(`view ${figureName(view)}`) ?? 0;

const WORST = ["failed", "degraded"];

/** Failed views first, then degraded ones, then all others. */
const troubleOf = (view: ViewGlance): number => (WORST.indexOf(view.status) + 1 || WORST.length + (view.error ? 1 : 2));

function valueOf(view: ViewGlance, by: Sorting): number | string {
  if (by === "trouble") return troubleOf(view);
  if (by === "name") return titleOf(view);
  if (by === "status") return view.status;
  if (by === "rows") return view.rows ?? -1;
  return by === "rate" ? rateOf(view) : (view.lag_bytes ?? -1);
}

function sorted(views: ViewGlance[], by: Sorting, isDown: boolean): ViewGlance[] {
  const turn = isDown ? -1 : 1;
  return views.toSorted((a, b) => {
    const [left, right] = [valueOf(a, by), valueOf(b, by)];
    const order = left < right ? -1 : left > right ? 1 : 0;
    return order * turn || (titleOf(a) < titleOf(b) ? -1 : 1);
  });
}

export function ListScreen() {
  const [search, setSearch] = useState("");
  const [[by, isDown], setOrder] = useState<[Sorting, boolean]>(["trouble", false]);
  const field = useRef<HTMLInputElement>(null);
  useKeys({
    j: () => moveFocus("[data-row]", 1),
    k: () => moveFocus("[data-row]", -1),
    "/": () => field.current?.focus(),
  });
  const reported = overview.value;
  if (!reported) return <ListSkeleton />;
  if (!reported.views.length) {
    return (
      <>
        <Welcome reported={reported} />
        {reported.sources.length > 0 && <div class="screen"><Others reported={reported} /></div>}
      </>
    );
  }
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = reported.views.filter((view) => {
    const text = `${figureName(view)} ${view.status} ${view.kind} ${view.group}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const leave = (event: KeyboardEvent): void => {
    if (event.key === "Escape") {
      setSearch("");
      field.current?.blur();
    } else if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      document.querySelector<HTMLElement>("[data-row]")?.focus();
    }
  };
  return (
    <div class="screen">
      <h1 class="unseen">Views</h1>
      <Alerts reported={reported} />
      <Totals reported={reported} />
      <section aria-label="Views">
        <div class="section-head">
          <h2>Views <span class="dim">{count(found.length)}</span></h2>
          <div class="search">
            <input
              ref={field}
              type="search"
              placeholder="Search name or status"
              aria-label="Search views"
              value={search}
              onInput={(event) => setSearch(event.currentTarget.value)}
              onKeyDown={leave}
            />
            <kbd aria-hidden="true">/</kbd>
          </div>
        </div>
        <table class="list">
          <thead>
            <tr>
              {COLUMNS.map(({ by: column, label, class: kind }) => (
                <th
                  key={label}
                  scope="col"
                  class={kind}
                  aria-sort={column === by ? (isDown ? "descending" : "ascending") : undefined}
                >
                  {column ? (
                    <button type="button" onClick={() => setOrder([column, column === by ? !isDown : column !== "name"])}>
                      {label}
                    </button>
                  ) : label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>{sorted(found, by, isDown).map((view) => <Row key={figureName(view)} view={view} />)}</tbody>
        </table>
        {!found.length && <p class="nothing">No view matches “<Text>{search}</Text>”.</p>}
      </section>
      <Others reported={reported} />
    </div>
  );
}

/** Problems that prevent updates of views, shown first. */
function Alerts({ reported }: { reported: Overview }) {
  const sources = reported.sources.filter((source) => source.status !== "running");
  if (reported.status !== "degraded") return null;
  return (
    <section class="alerts" role="alert" aria-label="What is wrong">
      {reported.reasons.length > 0 ? (
        <ul class="reasons">{reported.reasons.map((reason) => <li key={reason}><Text>{reason}</Text></li>)}</ul>
      ) : (
        <p class="reasons">The service is degraded.</p>
      )}
      {sources.length > 0 && (
        <p class="actions">
          {sources.map((source) => (
            <span key={source.name}>
              <a href={`#/sources/${encodeURIComponent(source.name)}`}>Source <Text>{source.name}</Text></a> <RetryButton name={source.name} />
            </span>
          ))}
        </p>
      )}
    </section>
  );
}

function Row({ view }: { view: ViewGlance }) {
  const title = titleOf(view);
  const isLive = view.status === "live";
  const name = `view ${figureName(view)}`;
  return (
    <tr>
      <td class="name">
        <a href={viewHref(title)} data-row><Text title={title.length > 40 ? title : ""}>{title}</Text></a>
        {view.group !== "default" && <span class="tag">{view.group}</span>}
        {view.errors > 0 && <span class="tag bad">{plural(view.errors, "error row")}</span>}
        {view.error && <span class="under bad"><Text>{view.error.title}</Text></span>}
      </td>
      <td>
        <Status status={view.status} />
        {view.status === "failed" && <> <RebuildButton title={title} isSmall /></>}
        {view.backfill && !isLive && view.status !== "failed" && <Progress view={view} />}
      </td>
      <td class="number">{compact(view.rows)}</td>
      <td class="number">{isLive ? rate(rateOf(view)) : "–"}</td>
      <td class="series wide-only">
        <Sparkline series={seriesOf(name)} label={`changes a second, now ${rate(rateOf(view))}`} />
      </td>
      <td class="number wide-only">{isLive ? lagText(view.lag_bytes, view.group) : "–"}</td>
    </tr>
  );
}

// The WAL that an idle database writes between two refreshes.
const NOISE_BYTES = 64 * 1024;
const PUNCTUAL_S = 2;

/** The lag: in seconds where the pipeline reports it, else in bytes of WAL. */
export function lagText(lag: number | null, group: string): string {
  const late = overview.value?.pipelines.find((reported) => reported.group === group)?.lag_seconds;
  if (typeof late === "number") return late < PUNCTUAL_S ? "up to date" : seconds(late);
  return lag === null ? "–" : lag < NOISE_BYTES ? "up to date" : bytes(lag);
}

function Progress({ view }: { view: ViewGlance }) {
  const left = view.backfill?.remaining_s;
  return (
    <div class="progress">
      <Bar share={shareOf(view.backfill)} label={`backfill of ${view.name}`} />
      <small>{typeof left === "number" ? `${seconds(left)} left` : (view.backfill?.phase ?? "")}</small>
    </div>
  );
}

function Totals({ reported }: { reported: Overview }) {
  const first = reported.pipelines[0];
  const live = reported.views.filter((view) => view.status === "live").length;
  const retained = reported.pipelines.reduce((sum, p) => sum + (p.wal_retained_bytes ?? 0), 0);
  return (
    <dl class="figures">
      <Figure label="Live" note={live < reported.views.length ? `of ${reported.views.length} views` : "all views"}>{count(live)}</Figure>
      <Figure label="Changes a second" note={<Sparkline series={seriesOf("views")} label="changes of all views" />}>
        {rate(newest("views"))}
      </Figure>
      <Figure label="Freshness, p50" note={first?.freshness_ms.p99 ? `p99 ${millis(first.freshness_ms.p99)}` : "no change yet"}>
        {freshness(first?.freshness_ms.p50)}
      </Figure>
      <Figure label="WAL retained at the source" note={first?.wal_budget_bytes ? `budget ${bytes(first.wal_budget_bytes)}` : ""}>
        {bytes(retained)}
      </Figure>
    </dl>
  );
}

function Others({ reported }: { reported: Overview }) {
  return (
    <div class="columns">
      <section aria-labelledby="sources">
        <div class="section-head">
          <h2 id="sources">Sources</h2>
          {mayOperate() && offers("POST /sources") && <a class="button small" href="#/new-source">New source</a>}
        </div>
        <table class="list">
          <thead>
            <tr><th scope="col">Source</th><th scope="col">Status</th><th scope="col" class="number">Records/s</th><th scope="col" class="number">Lag</th></tr>
          </thead>
          <tbody>
            {reported.pipelines.map((pipeline) => (
              <tr key={pipeline.group}>
                <td class="name">PostgreSQL{pipeline.group !== "default" && <span class="tag">{pipeline.group}</span>}</td>
                <td><Status status={pipeline.status} /></td>
                <td class="number">{rate(newest(`rows ${pipeline.group}`))}</td>
                <td class="number">{lagText(pipeline.lag_bytes, pipeline.group)}</td>
              </tr>
            ))}
            {reported.sources.toSorted((a, b) => Number(b.status !== "running") - Number(a.status !== "running")).map((source) => (
              <tr key={source.name}>
                <td class="name">
                  <a href={`#/sources/${encodeURIComponent(source.name)}`} data-row><Text>{source.name}</Text></a>
                  <span class="tag">{source.type}</span>
                  {source.error && <span class="under bad"><Text>{source.error.title}</Text></span>}
                  {source.dead_letters > 0 && <span class="tag bad">{plural(source.dead_letters, "dead letter")}</span>}
                </td>
                <td><Status status={source.status} /></td>
                <td class="number">{rate(newest(`source ${source.name}`))}</td>
                <td class="number">{compact(source.lag)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <section aria-labelledby="sinks">
        <div class="section-head"><h2 id="sinks">Additional sinks</h2></div>
        {reported.sinks.length ? (
          <table class="list">
            <thead>
              <tr><th scope="col">Sink</th><th scope="col">Status</th><th scope="col" class="number">Rows/s</th><th scope="col" class="number">Backlog</th></tr>
            </thead>
            <tbody>
              {reported.sinks.map((sink) => (
                <tr key={`${sink.view} ${sink.name}`}>
                  <td class="name">
                    <Text>{sink.name}</Text><span class="tag">{sink.type}</span>
                    <span class="under dim">of <a href={sinksHref(reported, sink)}><Text>{sink.view}</Text></a></span>
                    {sink.error && <span class="under bad"><Text>{sink.error.title}</Text></span>}
                  </td>
                  <td><Status status={sink.status} /></td>
                  <td class="number">{rate(newest(`sink ${sink.view}/${sink.name}`))}</td>
                  <td class="number">{bytes(sink.backlog_bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : (
          <p class="nothing">Every view is a table in PostgreSQL. A view's tab Sinks adds files, lakes, topics, other databases and webhooks.</p>
        )}
      </section>
    </div>
  );
}

/** The address of the sinks of a sink's view. */
function sinksHref(reported: Overview, sink: SinkGlance): string {
  const view = reported.views.find((one) => figureName(one) === sink.view);
  return viewHref(view ? titleOf(view) : sink.view, "sinks");
}

function ListSkeleton() {
  return (
    <div class="screen">
      <h1 class="unseen">Views</h1>
      <dl class="figures">
        {["Live", "Changes a second", "Freshness, p50", "WAL retained at the source"].map((label) => (
          <Figure key={label} label={label} note=" "> </Figure>
        ))}
      </dl>
      <div class="section-head"><h2>Views</h2></div>
      <Skeleton rows={5} wide />
    </div>
  );
}

