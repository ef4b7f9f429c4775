// The health of the service: epochs, freshness, lag, WAL that the source retains for us, memory.
import { bytes, compact, freshness, millis, rate, seconds } from "../lib/format";
import { seriesOf, newest, overview, type Pipeline } from "../lib/live";
import { Bar, Empty, Figure, Skeleton, Status, Text } from "../parts/basic";
import { Chart } from "../parts/charts";

export function HealthScreen() {
  const reported = overview.value;
  if (!reported) return <div class="screen"><h1>Health</h1><Skeleton rows={6} wide /></div>;
  return (
    <div class="screen">
      <div class="title">
        <h1>Health</h1>
        <Status status={reported.status} />
      </div>
      {reported.reasons.length > 0 && (
        <ul class="reasons">{reported.reasons.map((reason) => <li key={reason}><Text>{reason}</Text></li>)}</ul>
      )}
      {!reported.pipelines.length && <Empty title="Nothing to report yet"><p>The pipeline has written no figures so far.</p></Empty>}
      {reported.pipelines.map((pipeline) => <Group key={pipeline.group} reported={pipeline} isOnly={reported.pipelines.length === 1} />)}
      {reported.sources.length > 0 && (
        <section aria-labelledby="lags">
          <div class="section-head"><h2 id="lags">Other sources</h2></div>
          <div class="charts">
            {reported.sources.map((source) => (
              <Chart
                key={source.name}
                title={`${source.name}: records/s, lag ${compact(source.lag)} records`}
                lines={[{ name: source.name, series: seriesOf(`source ${source.name}`) }]}
                show={rate}
              />
            ))}
          </div>
        </section>
      )}
    </div>
  );
}

function Group({ reported, isOnly }: { reported: Pipeline; isOnly: boolean }) {
  const { group } = reported;
  const budget = reported.wal_budget_bytes ?? 0;
  const retained = reported.wal_retained_bytes;
  const up = Math.max(0, reported.updated_at - reported.started_at);
  return (
    <section aria-label={`pipeline ${group}`}>
      {!isOnly && <div class="section-head"><h2>Group {group}</h2><Status status={reported.status} /></div>}
      <dl class="figures">
        <Figure label="Epochs a second" note={`${compact(reported.epochs_written_total)} in ${seconds(up)}`}>
          {rate(newest(`epochs ${group}`))}
        </Figure>
        <Figure label="Source rows a second" note={`${compact(reported.source_rows_total)} in all`}>
          {rate(newest(`rows ${group}`))}
        </Figure>
        <Figure label="Freshness, p50" note={reported.freshness_ms.p99 ? `p99 ${millis(reported.freshness_ms.p99)}` : "no change yet"}>
          {freshness(reported.freshness_ms.p50)}
        </Figure>
        <Figure label="Step, p50" note={`p99 ${millis(reported.step_ms.p99)}`}>{millis(reported.step_ms.p50)}</Figure>
      </dl>
      <div class="charts">
        <Chart title="Epochs/s" lines={[{ name: "epochs", series: seriesOf(`epochs ${group}`) }]} show={rate} />
        <Chart title="Source rows/s" lines={[{ name: "rows", series: seriesOf(`rows ${group}`) }]} show={rate} />
        <Chart
          title="Freshness, commit to visible"
          lines={[
            { name: "p50", series: seriesOf(`p50 ${group}`) },
            { name: "p99", series: seriesOf(`p99 ${group}`) },
          ]}
          show={millis}
        />
        {reported.lag_seconds === null ? (
          <Chart title="Lag" lines={[{ name: "lag", series: seriesOf(`lag ${group}`) }]} show={bytes} base={1024} />
        ) : (
          <Chart title="Lag" lines={[{ name: "lag", series: seriesOf(`late ${group}`) }]} show={seconds} />
        )}
        <Chart title="WAL retained by the slot" lines={[{ name: "retained", series: seriesOf(`wal ${group}`) }]} show={bytes} base={1024} />
        <Chart title={reported.rss_bytes === null ? "Memory, peak" : "Memory"} lines={[{ name: "memory", series: seriesOf(`memory ${group}`) }]} show={bytes} base={1024} />
      </div>
      {retained !== null && budget > 0 && (
        <div class="budget">
          <p><span>WAL of the slot</span><span class="dim">{bytes(retained)}, budget {bytes(budget)}</span></p>
          <Bar share={Math.min(1, retained / budget)} label="share of the WAL budget" />
        </div>
      )}
      {reported.sink_stalled_s > 0 && (
        <p class="reasons">The sink has accepted no epoch for {seconds(reported.sink_stalled_s)}.</p>
      )}
    </section>
  );
}
