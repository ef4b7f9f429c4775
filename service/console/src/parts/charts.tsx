// Time series as SVG: a sparkline for tables, a chart with a scale for the health screen.
import { useState } from "preact/hooks";
import { clock } from "../lib/format";
import { type Series, overview } from "../lib/live";

const SPAN_S = 120;
const CHART_S = 180;

/** The end of all series: now, unless this one is newer. */
function endOf(series: Series): number {
  return Math.max(overview.value?.at ?? 0, series.at.at(-1) ?? 0);
}

/** The last two minutes, in a fixed width, so that nothing moves when points arrive. */
export function Sparkline({ series, label }: { series: Series; label: string }) {
  const width = 96;
  const height = 24;
  const { at, value } = series;
  const end = endOf(series);
  const top = Math.max(1e-9, ...value);
  const points = at
    .map((when, i) => [width - ((end - when) / SPAN_S) * width, height - 2 - ((value[i] ?? 0) / top) * (height - 4)])
    .filter(([x]) => (x ?? -1) >= 0);
  const line = points.map(([x, y]) => `${x?.toFixed(1)},${y?.toFixed(1)}`).join(" ");
  const first = points[0]?.[0]?.toFixed(1) ?? 0;
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={label}>
      {points.length > 1 && (
        <>
          <polygon points={`${first},${height} ${line} ${width},${height}`} />
          <polyline points={line} />
        </>
      )}
    </svg>
  );
}

export interface Line {
  name: string;
  series: Series;
}

/** One or two series over time with a scale, and the figures of the point under the pointer. */
export function Chart({ title, lines, show, base = 10 }: {
  title: string;
  lines: Line[];
  show: (value: number) => string;
  base?: number;
}) {
  const [over, setOver] = useState<number | null>(null);
  const width = 320;
  const height = 96;
  const first = lines[0]?.series ?? { at: [], value: [] };
  const end = endOf(first);
  const span = CHART_S;
  const inside = lines.map((line) => within(line.series, end - span));
  const top = niceTop(Math.max(0, ...inside.flatMap((series) => series.value)), base);
  const x = (when: number): number => width - ((end - when) / span) * width;
  const y = (value: number): number => height - (value / top) * (height - 6);
  const shown = over === null ? first.at.length - 1 : over;
  const figures = lines.map((line) => line.series.value[shown] ?? null);
  const onMove = (event: PointerEvent): void => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const when = end - span * (1 - (event.clientX - box.left) / box.width);
    let best: number | null = null;
    first.at.forEach((t, i) => {
      if (t < end - span) return;
      if (best === null || Math.abs(t - when) < Math.abs((first.at[best] ?? 0) - when)) best = i;
    });
    setOver(best);
  };
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        <span class="now">
          {lines.map((line, i) => (
            <span key={line.name} class={`line${i}`}>
              {lines.length > 1 && <i>{line.name}</i>} {figures[i] === null ? "–" : show(figures[i] ?? 0)}
            </span>
          ))}
        </span>
      </figcaption>
      <div class="plot">
      <svg
        viewBox={`0 0 ${width} ${height}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}: ${figures.map((f) => (f === null ? "none" : show(f))).join(", ")}`}
        onPointerMove={onMove}
        onPointerLeave={() => setOver(null)}
      >
        {TICKS.map((share) => (
          <line key={share} class="grid" x1="0" x2={width} y1={y(top * share)} y2={y(top * share)} />
        ))}
        {lines.map((line, i) => (
          <polyline
            key={line.name}
            class={`line${i}`}
            points={inside[i]?.at.map((when, n) => `${x(when).toFixed(1)},${y(inside[i]?.value[n] ?? 0).toFixed(1)}`).join(" ")}
          />
        ))}
        {over !== null && first.at[over] !== undefined && (
          <line class="cursor" x1={x(first.at[over] ?? 0)} x2={x(first.at[over] ?? 0)} y1="0" y2={height} />
        )}
      </svg>
      <div class="axis" aria-hidden="true">
        {[...TICKS, 0].map((share) => (
          <span key={share} style={{ top: `${(y(top * share) / height) * 100}%` }}>{show(top * share)}</span>
        ))}
      </div>
      </div>
      <p class="scale">
        {over !== null && first.at[over] !== undefined ? <span>{clock((first.at[over] ?? 0) * 1000)}</span> : <span>{span / 60} min ago</span>}
        <span>now</span>
      </p>
    </figure>
  );
}

const TICKS = [0.5, 1];

/** The points of a series in the window that ends now. */
function within(series: Series, since: number): Series {
  const from = series.at.findIndex((when) => when >= since);
  return from < 0 ? { at: [], value: [] } : { at: series.at.slice(from), value: series.value.slice(from) };
}

/** The next of 1, 2, 5 (and so on) times a power of the base: 10, or 1024 for bytes. */
function niceTop(value: number, base: number): number {
  if (value <= 0) return 1;
  const power = base ** Math.floor(Math.log(value) / Math.log(base));
  return ([1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * power >= value) ?? 1000) * power;
}
