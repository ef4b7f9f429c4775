// The progress of a backfill.
import { bytes, compact, seconds } from "../lib/format";
import type { Backfill } from "../lib/live";
import { Bar } from "./basic";

/** From 0 to 1 by the estimated time, else by parts read; null while unknown. */
export function shareOf(backfill: Backfill | null): number | null {
  if (!backfill) return null;
  const elapsed = backfill.elapsed_s ?? 0;
  const left = backfill.remaining_s;
  if (typeof left === "number" && elapsed + left > 0) return elapsed / (elapsed + left);
  const { parts_done: done = 0, parts_total: total = 0 } = backfill;
  return total ? done / total : null;
}

export function BackfillNote({ backfill }: { backfill: Backfill }) {
  const parts = backfill.parts_total ? `${backfill.parts_done ?? 0} of ${backfill.parts_total} parts` : "";
  const facts = [
    parts,
    backfill.rows ? `${compact(backfill.rows)} rows` : "",
    backfill.bytes ? bytes(backfill.bytes) : "",
    backfill.elapsed_s ? `${seconds(backfill.elapsed_s)} so far` : "",
    backfill.engine ? `engine: ${backfill.engine}` : "",
  ].filter(Boolean);
  return (
    <section class="backfill" aria-label="Backfill">
      <p>
        <strong>{backfill.phase ?? "starting"}</strong>
        <span>{typeof backfill.remaining_s === "number" ? `about ${seconds(backfill.remaining_s)} left` : ""}</span>
      </p>
      <Bar share={shareOf(backfill)} label="backfill" />
      <p class="dim">{facts.join(" · ")}</p>
    </section>
  );
}
