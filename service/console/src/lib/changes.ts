// The stream of a view's changes, collected into whole epochs for display.
import { parseRows } from "./exact";
import type { ServerEvent } from "./sse";

export interface Change {
  weight: number;
  row: Record<string, unknown>;
  /** Columns that differ from the row that this one replaces or is replaced by. */
  differs: ReadonlySet<string>;
}

export interface Epoch {
  epoch: number;
  at: number;
  added: number;
  removed: number;
  changes: Change[];
}

const SHOWN_OF_AN_EPOCH = 40;

interface ChangesEvent {
  epoch: number;
  rows: Record<string, unknown>[];
  weights: number[];
}

export class Gathering {
  private rows: Record<string, unknown>[] = [];
  private weights: number[] = [];

  constructor(private readonly key: string[]) {}

  /** Process one event; return the epoch that it closes, if any. */
  take(received: ServerEvent): Epoch | null {
    if (received.event === "changes") {
      const { rows, weights } = parseRows<ChangesEvent>(received.data);
      // A long epoch has many events: hidden rows are only counted.
      for (let i = 0; i < rows.length; i += 1) {
        this.rows.push(rows[i] ?? {});
        this.weights.push(weights[i] ?? 0);
      }
      return null;
    }
    // An earlier service sends `mark` for `progress`.
    if (received.event !== "progress" && received.event !== "mark") return null;
    const { epoch } = JSON.parse(received.data) as { epoch: number };
    const { rows, weights } = this;
    this.rows = [];
    this.weights = [];
    if (!rows.length) return null;
    return {
      epoch,
      at: Date.now(),
      added: weights.reduce((sum, w) => sum + Math.max(0, w), 0),
      removed: weights.reduce((sum, w) => sum + Math.max(0, -w), 0),
      changes: paired(rows, weights, this.key).slice(0, SHOWN_OF_AN_EPOCH),
    };
  }
}

/** Old and new row of one key beside each other, with the columns that differ. */
export function paired(rows: Record<string, unknown>[], weights: number[], key: string[]): Change[] {
  const byKey = new Map<string, Change[]>();
  rows.forEach((row, i) => {
    const name = key.length ? JSON.stringify(key.map((column) => row[column])) : String(i);
    const some = byKey.get(name) ?? [];
    some.push({ weight: weights[i] ?? 0, row, differs: new Set() });
    byKey.set(name, some);
  });
  for (const some of byKey.values()) {
    some.sort((a, b) => a.weight - b.weight);
    const [old, fresh] = some;
    if (some.length !== 2 || !old || !fresh || old.weight >= 0 || fresh.weight <= 0) continue;
    const differs = new Set(
      Object.keys(fresh.row).filter((c) => JSON.stringify(old.row[c]) !== JSON.stringify(fresh.row[c])),
    );
    old.differs = differs;
    fresh.differs = differs;
  }
  return [...byKey.values()].flat();
}
