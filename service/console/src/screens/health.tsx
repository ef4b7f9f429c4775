// The health of the service: epochs, freshness, lag, WAL that the source retains for us, memory.
import { bytes, compact, freshness, millis, rate, seconds } from "../lib/format";
import { courseOf, newest, overview, type Pipeline } from "../lib/live";
import { Bar, Empty, Figure, Skeleton, Status, Text } from "../parts/basic";
import { Chart } from "../parts/charts";

export function HealthScreen() {
  const told = overview.value;
  if (!told) return <div class="screen"><h1>Health</h1><Skeleton rows={6} wide /></div>;
  return (
    <div class="screen">
      <div class="title">
        <h1>Health</h1>
        <Status status={told.status} />
      </div>
      {told.reasons.length > 0 && (
        <ul class="reasons">{told.reasons.map((reason) => <li key={reason}><Text>{reason}</Text></li>)}</ul>
      )}
      {!told.pipelines.length && <Empty title="Nothing to report yet"><p>The pipeline has written no figures so far.</p></Empty>}
      {told.pipelines.map((pipeline) => <Group key={pipeline.group} told={pipeline} isOnly={told.pipelines.length === 1} />)}
      {told.sources.length > 0 && (
        <section aria-labelledby="lags">
          <div class="section-head"><h2 id="lags">Other sources</h2></div>
          <div class="charts">
            {told.sources.map((source) => (
              <Chart
                key={source.name}
                title={`${source.name}: records/s, lag ${compact(source.lag)} records`}
                lines={[{ name: source.name, course: courseOf(`source ${source.name}`) }]}
                show={rate}
              />
            ))}
          </div>
        </section>
      )}
    </div>
  );
}

function Group({ told, isOnly }: { told: Pipeline; isOnly: boolean }) {
  const { group } = told;
  const budget = told.wal_budget_bytes ?? 0;
  const retained = told.wal_retained_bytes;
  const up = Math.max(0, told.updated_at - told.started_at);
  return (
    <section aria-label={`pipeline ${group}`}>
      {!isOnly && <div class="section-head"><h2>Group {group}</h2><Status status={told.status} /></div>}
      <dl class="figures">
        <Figure label="Epochs a second" note={`${compact(told.epochs_written_total)} in ${seconds(up)}`}>
          {rate(newest(`epochs ${group}`))}
        </Figure>
        <Figure label="Source rows a second" note={`${compact(told.source_rows_total)} in all`}>
          {rate(newest(`rows ${group}`))}
        </Figure>
        <Figure label="Freshness, p50" note={told.freshness_ms.p99 ? `p99 ${millis(told.freshness_ms.p99)}` : "no change yet"}>
          {freshness(told.freshness_ms.p50)}
        </Figure>
        <Figure label="Step, p50" note={`p99 ${millis(told.step_ms.p99)}`}>{millis(told.step_ms.p50)}</Figure>
      </dl>
      <div class="charts">
        <Chart title="Epochs/s" lines={[{ name: "epochs", course: courseOf(`epochs ${group}`) }]} show={rate} />
        <Chart title="Source rows/s" lines={[{ name: "rows", course: courseOf(`rows ${group}`) }]} show={rate} />
        <Chart
          title="Freshness, commit to visible"
          lines={[
            { name: "p50", course: courseOf(`p50 ${group}`) },
            { name: "p99", course: courseOf(`p99 ${group}`) },
          ]}
          show={millis}
        />
        {told.lag_seconds === null ? (
          <Chart title="Lag" lines={[{ name: "lag", course: courseOf(`lag ${group}`) }]} show={bytes} base={1024} />
        ) : (
          <Chart title="Lag" lines={[{ name: "lag", course: courseOf(`late ${group}`) }]} show={seconds} />
        )}
        <Chart title="WAL retained by the slot" lines={[{ name: "retained", course: courseOf(`wal ${group}`) }]} show={bytes} base={1024} />
        <Chart title={told.rss_bytes === null ? "Memory, peak" : "Memory"} lines={[{ name: "memory", course: courseOf(`memory ${group}`) }]} show={bytes} base={1024} />
      </div>
      {retained !== null && budget > 0 && (
        <div class="budget">
          <p><span>WAL of the slot</span><span class="dim">{bytes(retained)}, budget {bytes(budget)}</span></p>
          <Bar share={Math.min(1, retained / budget)} label="share of the WAL budget" />
        </div>
      )}
      {told.sink_stalled_s > 0 && (
        <p class="reasons">The sink has accepted no epoch for {seconds(told.sink_stalled_s)}.</p>
      )}
    </section>
  );
}
