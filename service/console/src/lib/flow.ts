// The nodes of a dataflow as they are drawn: steps without state are folded into the node whose rows
// they pass on, and a layout has few crossings.
import { graphlib, layout } from "@dagrejs/dagre";

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

/** A node, and the steps after it that are drawn with it. Its id is that of the last of them. */
export interface Chain {
  id: string;
  inputs: string[];
  /** At least one, in the order of the rows. */
  members: FlowNode[];
}

// They have one input and no state of their own.
const STEPS = new Set(["scan", "filter", "project"]);

/** Each node with the steps that alone read it; isFolded false: each node by itself. */
export function chainsOf(nodes: FlowNode[], isFolded: boolean): Chain[] {
  const readers = new Map<string, number>();
  for (const node of nodes) for (const input of node.inputs) readers.set(input, (readers.get(input) ?? 0) + 1);
  const chains = new Map<string, Chain>();
  // Inputs come before their readers.
  for (const node of nodes) {
    const before = isFolded && STEPS.has(node.what) && node.inputs.length === 1 ? chains.get(node.inputs[0] ?? "") : undefined;
    if (before && readers.get(before.id) === 1) {
      chains.delete(before.id);
      chains.set(node.id, { ...before, id: node.id, members: [...before.members, node] });
    } else {
      chains.set(node.id, { id: node.id, inputs: node.inputs, members: [node] });
    }
  }
  return [...chains.values()];
}

export interface Placed {
  width: number;
  height: number;
  nodes: Map<string, { x: number; y: number }>;
  edges: { from: string; to: string; path: string }[];
}

/** Layers from the sources down, with few crossings (Gansner et al. 1993, by dagre). */
export function arrange(chains: Chain[], size: { width: number; height: number }): Placed {
  const graph = new graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "TB", nodesep: 28, ranksep: 34, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  const names = new Set(chains.map((chain) => chain.id));
  for (const chain of chains) graph.setNode(chain.id, { ...size });
  for (const chain of chains) {
    for (const input of chain.inputs) if (names.has(input)) graph.setEdge(input, chain.id);
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
