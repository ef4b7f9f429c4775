// The dataflow as a picture: rows flow from the sources at the top to the view at the bottom.
// Figures are totals since the pipeline's start; two answers give rates.
import { graphlib, layout } from "@dagrejs/dagre";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { viewPath } from "../lib/api";
import { bytes, compact, rate, shortened } from "../lib/format";
import { overview } from "../lib/live";
import { figureName, titleOf } from "../lib/names";
import { usePolled } from "../lib/use";
import { Empty, ProblemNote, Skeleton, Text } from "../parts/basic";
import type { TabProps } from "./view";

export interface FlowNode {
  id: string;
  what: string;
  detail: string;
  inputs: string[];
  shared_with: string[];
  rows: number | null;
  bytes: number | null;
  rows_in: number | null;
  rows_out: number | null;
  time_s: number | null;
}

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

const WIDTH = 236;
const HEIGHT = 80;
const LEAST_SCALE = 0.6;

export function DataflowTab({ name, view }: TabProps) {
  const { value: reported, problem } = usePolled<Flow>(`${viewPath(name)}/dataflow`, 1000);
  const rates = useRates(reported);
  const flow = reported && { ...reported, nodes: [...reported.nodes, ...endsOf(reported.nodes, view)] };
  const [chosen, setChosen] = useState<string | null>(null);
  const shape = JSON.stringify(flow?.nodes.map((node) => [node.id, node.inputs]) ?? []);
  const placed = useMemo(() => (flow ? arrange(flow.nodes) : null), [shape]);
  const box = useRef<HTMLDivElement>(null);
  const [scale, setScale] = useState(1);
  useLayoutEffect(() => {
    if (!box.current || !placed) return;
    const watch = new ResizeObserver(([entry]) => {
      const room = entry?.contentRect.width ?? placed.width;
      setScale(Math.max(LEAST_SCALE, Math.min(1, room / placed.width)));
    });
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [placed]);
  if (problem && !flow) return <ProblemNote problem={problem} />;
  if (!flow || !placed) return <Skeleton rows={6} wide />;
  if (!flow.nodes.length) {
    return <Empty title="No dataflow yet"><p>{view.status === "live" ? "The pipeline has written no figures so far." : "It is here once the view is live."}</p></Empty>;
  }
  const shown = flow.nodes.find((node) => node.id === chosen);
  const busiest = Math.max(1e-9, ...flow.nodes.map((node) => rates.get(node.id)?.load ?? 0));
  return (
    <>
      <p class="legend dim">
        <span>Rows flow downwards.</span>
        <span><i class="key-time" /> share of the time spent</span>
        <span><i class="key-shared" /> shared with other views</span>
      </p>
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
            {flow.nodes.map((node) => {
              const at = placed.nodes.get(node.id);
              if (!at) return null;
              const rated = isEnd(node) ? rates.get(node.inputs[0] ?? "") : rates.get(node.id);
              return (
                <NodeBox
                  key={node.id}
                  node={node}
                  rates={rated}
                  share={isEnd(node) ? 0 : (rated?.load ?? 0) / busiest}
                  isChosen={node.id === chosen}
                  choose={() => setChosen(node.id === chosen ? null : node.id)}
                  x={at.x}
                  y={at.y}
                />
              );
            })}
          </div>
        </div>
      </div>
      {shown && !isEnd(shown) ? <Details node={shown} rates={rates.get(shown.id)} /> : <p class="dim">Choose a node for all of its figures.</p>}
    </>
  );
}

function NodeBox({ node, rates, share, isChosen, choose, x, y }: {
  node: FlowNode;
  rates: Rates | undefined;
  share: number;
  isChosen: boolean;
  choose: () => void;
  x: number;
  y: number;
}) {
  const stored = node.bytes ? bytes(node.bytes) : "";
  const kind = isEnd(node) ? " is-end" : node.inputs.length ? "" : " is-source";
  return (
    <button
      type="button"
      class={`node${node.shared_with.length ? " shared" : ""}${kind}`}
      aria-pressed={isChosen}
      onClick={choose}
      style={{ left: `${x - WIDTH / 2}px`, top: `${y - HEIGHT / 2}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` }}
    >
      <span class="what">
        <Text>{node.what}</Text>
        {node.shared_with.length > 0 && <span class="tag">shared × {node.shared_with.length + 1}</span>}
      </span>
      <span class="detail"><Text>{shortened(detailOf(node), 90)}</Text></span>
      <span class="stats">
        <span>{rates ? `${rate(rates.rowsOut)} rows/s` : "–"}</span>
        <span>{isEnd(node) ? (node.rows === null ? "" : `${compact(node.rows)} rows`) : stored}</span>
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
const isEnd = (node: FlowNode): boolean => node.id.startsWith("end ");

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

interface Placed {
  width: number;
  height: number;
  nodes: Map<string, { x: number; y: number }>;
  edges: { from: string; to: string; path: string }[];
}

/** Layers from the sources down, with few crossings (Gansner et al. 1993, by dagre). */
function arrange(nodes: FlowNode[]): Placed {
  const graph = new graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 28, ranksep: 34, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  const names = new Set(nodes.map((node) => node.id));
  for (const node of nodes) graph.setNode(node.id, { width: WIDTH, height: HEIGHT });
  for (const node of nodes) {
    for (const input of node.inputs) if (names.has(input)) graph.setEdge(input, node.id);
  }
  layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  return {
    width,
    height,
    nodes: new Map(graph.nodes().map((id) => [id, graph.node(id)])),
    edges: graph.edges().map(({ v, w }) => ({ from: v, to: w, path: curve(graph.edge({ v, w }).points) })),
  };
}

/** A smooth line through the points that dagre gives for an edge. */
function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let path = `M${first.x},${first.y}`;
  let last = first;
  for (const point of rest) {
    const middle = (last.y + point.y) / 2;
    path += `C${last.x},${middle} ${point.x},${middle} ${point.x},${point.y}`;
    last = point;
  }
  return path;
}
