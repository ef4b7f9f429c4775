// The dataflow as a picture: rows flow from the sources at the top to the view at the bottom.
// Figures are totals since the pipeline's start; two answers give rates.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { viewPath } from "../lib/api";
import { arrange, chainsOf, type Chain, type FlowNode } from "../lib/flow";
import { bytes, compact, rate, shortened } from "../lib/format";
import { overview } from "../lib/live";
import { figureName, titleOf } from "../lib/names";
import { usePolled } from "../lib/use";
import { Empty, ProblemNote, Skeleton, Text } from "../parts/basic";
import type { TabProps } from "./view";

interface Flow {
  nodes: FlowNode[];
  at: number | null;
  since: number | null;
}

interface Rates {
  rowsIn: number;
  rowsOut: number;
  /** Share of one core's time. */
  load: number;
}

const HEIGHT = 80;
const WIDTH = 236;
/** On a phone nodes are narrower, so that two lie side by side. */
const NARROW = { below: 560, width: 164 };
const ZOOM = 1.4;
const MOST_ZOOM = 4;

export function DataflowTab({ name, view }: TabProps) {
  const { value: reported, problem } = usePolled<Flow>(`${viewPath(name)}/dataflow`, 1000);
  const rates = useRates(reported);
  const nodes = reported && [...reported.nodes, ...endsOf(reported.nodes, view)];
  const [isFolded, setFolded] = useState(true);
  const [chosen, setChosen] = useState<string | null>(null);
  const [zoom, setZoom] = useState(1);
  const { box, room } = useRoom((nodes?.length ?? 0) > 0);
  const width = room < NARROW.below ? NARROW.width : WIDTH;
  const shape = JSON.stringify(nodes?.map((node) => [node.id, node.what, node.inputs]) ?? []);
  const drawn = useMemo(() => {
    const chains = chainsOf(nodes ?? [], isFolded);
    return { ids: chains.map((chain) => chain.id), placed: arrange(chains, { width, height: HEIGHT }) };
  }, [shape, isFolded, width]);
  if (problem && !nodes) return <ProblemNote problem={problem} />;
  if (!nodes) return <Skeleton rows={6} wide />;
  if (!nodes.length) {
    return <Empty title="No dataflow yet"><p>{view.status === "live" ? "The pipeline has written no figures so far." : "It is here once the view is live."}</p></Empty>;
  }
  const { placed } = drawn;
  const scale = Math.min(1, (room || placed.width) / placed.width) * zoom;
  const chains = chainsOf(nodes, isFolded);
  const shown = chains.find((chain) => chain.id === chosen);
  const loadOf = (chain: Chain): number => chain.members.reduce((sum, node) => sum + (rates.get(node.id)?.load ?? 0), 0);
  const busiest = Math.max(1e-9, ...chains.map(loadOf));
  return (
    <>
      <div class="legend dim">
        <span>Rows flow downwards.</span>
        <span><i class="key-time" /> share of the time spent</span>
        <span><i class="key-shared" /> shared with other views</span>
        <span class="end">
          <label class="tick"><input type="checkbox" checked={!isFolded} onChange={(event) => setFolded(!event.currentTarget.checked)} />every step</label>
          <button type="button" class="small icon" aria-label="Zoom out" disabled={zoom <= 1} onClick={() => setZoom(Math.max(1, zoom / ZOOM))}>−</button>
          <button type="button" class="small" disabled={zoom === 1} onClick={() => setZoom(1)}>Fit</button>
          <button type="button" class="small icon" aria-label="Zoom in" disabled={zoom >= MOST_ZOOM} onClick={() => setZoom(Math.min(MOST_ZOOM, zoom * ZOOM))}>+</button>
        </span>
      </div>
      <div class="flow" ref={box}>
        <div class="canvas" style={{ width: `${placed.width * scale}px`, height: `${placed.height * scale}px` }}>
          <div class="sheet" style={{ width: `${placed.width}px`, height: `${placed.height}px`, transform: `scale(${scale})` }}>
            <svg width={placed.width} height={placed.height} aria-hidden="true">
              {placed.edges.map((edge) => {
                const flowing = rates.get(edge.from)?.rowsOut ?? 0;
                return (
                  <path
                    key={`${edge.from} ${edge.to}`}
                    d={edge.path}
                    class={flowing > 0 ? "flowing" : ""}
                    style={{ strokeWidth: `${1.25 + Math.min(3, Math.log10(1 + flowing) * 0.7)}px` }}
                  />
                );
              })}
            </svg>
            {chains.map((chain) => {
              const at = placed.nodes.get(chain.id);
              if (!at) return null;
              return (
                <NodeBox
                  key={chain.id}
                  chain={chain}
                  rowsOut={rates.get(isEnd(chain) ? (chain.inputs[0] ?? "") : chain.id)?.rowsOut}
                  share={isEnd(chain) ? 0 : loadOf(chain) / busiest}
                  isChosen={chain.id === chosen}
                  choose={() => setChosen(chain.id === chosen ? null : chain.id)}
                  box={{ left: at.x - width / 2, top: at.y - HEIGHT / 2, width, height: HEIGHT }}
                />
              );
            })}
          </div>
        </div>
      </div>
      {shown && !isEnd(shown)
        ? shown.members.map((node) => <Details key={node.id} node={node} rates={rates.get(node.id)} />)
        : <p class="dim">Choose a node for all of its figures.</p>}
    </>
  );
}

/** The width inside of a box, as it changes. */
function useRoom(isThere: boolean) {
  const box = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState(0);
  useLayoutEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(([entry]) => setRoom(Math.floor(entry?.contentRect.width ?? 0)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [isThere]);
  return { box, room };
}

function NodeBox({ chain, rowsOut, share, isChosen, choose, box }: {
  chain: Chain;
  rowsOut: number | undefined;
  share: number;
  isChosen: boolean;
  choose: () => void;
  box: { left: number; top: number; width: number; height: number };
}) {
  const [first, ...steps] = chain.members;
  if (!first) return null;
  const size = chain.members.reduce((sum, node) => sum + (node.bytes ?? 0), 0);
  const shared = Math.max(...chain.members.map((node) => node.shared_with.length));
  const isWhole = chain.members.every((node) => node.shared_with.length > 0);
  const kind = isEnd(chain) ? " is-end" : chain.inputs.length ? "" : " is-source";
  // That a table is scanned says nothing.
  const after = steps.map((step) => step.what).filter((what) => what !== "scan");
  return (
    <button
      type="button"
      class={`node${shared ? " shared" : ""}${kind}`}
      aria-pressed={isChosen}
      onClick={choose}
      style={Object.fromEntries(Object.entries(box).map(([side, length]) => [side, `${length}px`]))}
    >
      <span class="what">
        <Text>{[first.what, ...after].join(" · ")}</Text>
        {shared > 0 && <span class="tag" title={isWhole ? "" : "its last steps are this view's own"}>shared × {shared + 1}</span>}
      </span>
      <span class="detail"><Text>{shortened(detailOf(first), 90)}</Text></span>
      <span class="stats">
        <span>{rowsOut === undefined ? "–" : `${rate(rowsOut)} rows/s`}</span>
        <span>{isEnd(chain) ? (first.rows === null ? "" : `${compact(first.rows)} rows`) : size ? bytes(size) : ""}</span>
      </span>
      <span class="time"><span style={{ width: `${Math.round(share * 100)}%` }} /></span>
    </button>
  );
}

function Details({ node, rates }: { node: FlowNode; rates: Rates | undefined }) {
  return (
    <section class="details" aria-live="off" aria-label={`node ${node.what}`}>
      <h2><Text>{node.what}</Text></h2>
      {node.detail && <pre class="value" tabIndex={0}><bdi>{node.detail}</bdi></pre>}
      <dl class="facts">
        <dt>Rows in</dt><dd>{rates ? `${rate(rates.rowsIn)}/s` : "–"} <span class="dim">{compact(node.rows_in)} in all</span></dd>
        <dt>Rows out</dt><dd>{rates ? `${rate(rates.rowsOut)}/s` : "–"} <span class="dim">{compact(node.rows_out)} in all</span></dd>
        <dt>Stored</dt><dd>{node.rows ? `${compact(node.rows)} rows, ${bytes(node.bytes)}` : "nothing"}</dd>
        <dt>Time</dt><dd>{rates ? `${(rates.load * 1000).toFixed(1)} ms a second` : "–"} <span class="dim">{node.time_s === null ? "" : `${node.time_s.toFixed(2)} s in all`}</span></dd>
        {node.shared_with.length > 0 && <><dt>Shared with</dt><dd><Text>{node.shared_with.join(", ")}</Text></dd></>}
      </dl>
    </section>
  );
}

/** The outputs below the dataflow: the view's table, and its additional sinks. */
const isEnd = (node: { id: string }): boolean => node.id.startsWith("end ");

function endsOf(nodes: FlowNode[], view: TabProps["view"]): FlowNode[] {
  const last = nodes.at(-1);
  if (!last) return [];
  const none = { shared_with: [], bytes: null, rows_in: null, rows_out: null, time_s: null };
  const sinks = overview.value?.sinks.filter((sink) => sink.view === figureName(view)) ?? [];
  return [
    { ...none, id: "end table", what: "view", detail: titleOf(view), inputs: [last.id], rows: view.rows },
    ...sinks.map((sink) => ({ ...none, id: `end ${sink.name}`, what: "sink", detail: `${sink.type}: ${sink.name}`, inputs: [last.id], rows: null })),
  ];
}

/** The detail without the word that is already shown above it. */
function detailOf({ what, detail }: FlowNode): string {
  const rest = detail.startsWith(`${what} `) ? detail.slice(what.length + 1) : detail;
  return rest.replace(/^(rows of|source:)\s*/, "");
}

/** Rates between this answer and one at least half a second older. */
function useRates(flow: Flow | null): Map<string, Rates> {
  const before = useRef<Flow | null>(null);
  const rates = useRef(new Map<string, Rates>());
  if (flow && flow.at !== null && before.current?.at !== flow.at) {
    const old = before.current;
    const passed = flow.at - (old?.at ?? 0);
    if (!old || old.since !== flow.since || passed < 0) {
      rates.current = new Map();
      before.current = flow;
    } else if (passed >= 0.5) {
      const was = new Map(old.nodes.map((node) => [node.id, node]));
      const each = (now: number | null, past: number | null | undefined): number =>
        Math.max(0, ((now ?? 0) - (past ?? now ?? 0)) / passed);
      rates.current = new Map(
        flow.nodes.map((node) => {
          const then = was.get(node.id);
          return [node.id, {
            rowsIn: each(node.rows_in, then?.rows_in),
            rowsOut: each(node.rows_out, then?.rows_out),
            load: each(node.time_s, then?.time_s),
          }];
        }),
      );
      before.current = flow;
    }
  }
  return rates.current;
}
