// What POST /views/validate answers: the view that a query would become, and what it would cost.
import { bytes, count, plural, rate, seconds } from "../lib/format";
import { Snippet, Text } from "./basic";
import { Fields } from "./fields";

interface Estimate {
  source_rows?: number | null;
  output_rows?: number | null;
  state_bytes?: number | null;
  backfill_s?: number | null;
  engine?: string;
  amplification?: Record<string, { rows_out: number; rows_touched: number }>;
  notes?: string[];
  risks?: { operator: string; why: string; hint: string }[];
}

export interface Validation {
  kind: string;
  key: string[];
  why_no_key: string;
  fields: { name: string; type: string; nullable: boolean }[];
  warnings: string[];
  in_postgres: string[];
  estimated_source_rows: number;
  backfill: string;
  plan: string;
  estimate?: Estimate | null;
}

export function Answer({ answer, isOld }: { answer: Validation; isOld: boolean }) {
  return (
    <div class={isOld ? "old" : ""} aria-hidden={isOld}>
      <Cost answer={answer} />
      <h2>{plural(answer.fields.length, "column")}</h2>
      <Fields fields={answer.fields} keyNames={answer.key} />
      <Snippet label="Plan" text={answer.plan} />
      {answer.in_postgres.length > 0 && <Snippet label="Computed by PostgreSQL, in batches" text={answer.in_postgres.join("\n")} />}
    </div>
  );
}

/** The estimate, with what is worth knowing before the view is created. */
export function Cost({ answer }: { answer: Validation }) {
  const estimate: Estimate = answer.estimate ?? { source_rows: answer.estimated_source_rows, engine: answer.backfill };
  const facts: [string, string][] = [
    ["Source rows", count(estimate.source_rows)],
    ["View rows", count(estimate.output_rows)],
    ["State", bytes(estimate.state_bytes)],
    ["Backfill", [seconds(estimate.backfill_s), estimate.engine ?? answer.backfill].filter((w) => w !== "–").join(", ")],
    ...Object.entries(estimate.amplification ?? {}).map(([table, effect]): [string, string] => [
      `A row of ${table}`,
      `changes ${rate(effect.rows_out)} rows, touches ${rate(effect.rows_touched)}`,
    ]),
  ];
  const notes = [...answer.warnings, ...(estimate.notes ?? [])];
  return (
    <>
      <dl class="facts estimate">
        {facts.filter(([, value]) => value !== "–").map(([label, value]) => (
          <FactRow key={label} label={label} value={value} />
        ))}
      </dl>
      {answer.kind === "multiset" && <p class="dim">No primary key: <Text>{answer.why_no_key}</Text></p>}
      {estimate.risks?.length || notes.length ? (
        <ul class="reasons soft">
          {estimate.risks?.map((risk) => (
            <li key={risk.operator + risk.why}>
              <strong><Text>{risk.operator}</Text></strong> <Text>{risk.why}</Text> {risk.hint && <span class="dim"><Text>{risk.hint}</Text></span>}
            </li>
          ))}
          {notes.map((note) => <li key={note}><Text>{note}</Text></li>)}
        </ul>
      ) : null}
    </>
  );
}

function FactRow({ label, value }: { label: string; value: string }) {
  return <><dt><Text>{label}</Text></dt><dd>{value}</dd></>;
}
