// An external source: its relations and its dead letters.
import { lazy, Suspense } from "preact/compat";
import { useState } from "preact/hooks";
import { call, mayOperate, offers, optionSchemas } from "../lib/api";
import { compact, count, rate, shown } from "../lib/format";
import { newest, refresh, type ReportedError } from "../lib/live";
import { go } from "../lib/router";
import { itemOf, type Schema } from "../lib/schema";
import { usePolled } from "../lib/use";
import { Empty, Figure, ProblemNote, Skeleton, Status, Text } from "../parts/basic";
import { Confirm } from "../parts/confirm";
import { DeadLetters } from "../parts/dead_letters";
import { Fields } from "../parts/fields";
import { type Grant, SourceReaders } from "../parts/source_readers";
import { RetryButton } from "../parts/source_retry";
import { tell } from "../parts/toasts";

const ResetDialog = lazy(() => import("./source_reset").then((m) => m.ResetDialog));

interface Relation {
  name: string;
  fields: { name: string; type: string; nullable: boolean }[];
  key: string[];
  append_only: boolean;
  views: string[];
  dead_letters: number;
}

interface Source {
  name: string;
  type: string;
  options: Record<string, unknown>;
  relations: Relation[];
  status: string;
  error: ReportedError | null;
  rows_read: number;
  lag: number | null;
  positions: Record<string, unknown>;
  declared_by: string | null;
  grants: Grant[];
}

export function SourceScreen({ name }: { name: string }) {
  const { value: source, problem, again } = usePolled<Source>(`/sources/${encodeURIComponent(name)}`, 2000);
  if (!source) {
    return <div class="screen"><h1><Text>{name}</Text></h1>{problem ? <ProblemNote problem={problem} /> : <Skeleton wide />}</div>;
  }
  const letters = source.relations.reduce((sum, relation) => sum + relation.dead_letters, 0);
  return (
    <div class="screen">
      <nav class="crumbs" aria-label="Breadcrumb"><a href="#/">Views</a> / Sources</nav>
      <div class="title">
        <h1><Text>{source.name}</Text></h1>
        <span class="tag">{source.type}</span>
        <Status status={source.status} />
        <span class="end">
          {source.status !== "running" && <RetryButton name={source.name} again={again} />}
          <Actions source={source} />
        </span>
      </div>
      {source.error && <ProblemNote problem={source.error} />}
      <dl class="figures">
        <Figure label="Records a second" note={`${compact(source.rows_read)} since the start`}>{rate(newest(`source ${name}`))}</Figure>
        <Figure label="Lag" note="records, estimated">{compact(source.lag)}</Figure>
        <Figure label="Relations">{count(source.relations.length)}</Figure>
        <Figure label="Dead letters" note="malformed records">{compact(letters)}</Figure>
      </dl>
      {source.relations.map((relation) => (
        <section key={relation.name} aria-label={`relation ${relation.name}`}>
          <div class="section-head">
            <h2><Text>{`${source.name}.${relation.name}`}</Text></h2>
            <span class="dim">
              {relation.views.length ? `read by ${relation.views.join(", ")}` : "read by no view"}
              {relation.append_only && " · append only"}
              {relation.dead_letters > 0 && ` · ${compact(relation.dead_letters)} dead letters`}
            </span>
            <Reset source={source} relation={relation.name} again={again} />
          </div>
          <p class="position">
            Position <code><Text>{positionOf(source, relation)}</Text></code>
          </p>
          <Fields fields={relation.fields} keyNames={relation.key} />
        </section>
      ))}
      <SourceReaders
        source={source.name}
        relations={source.relations.map((relation) => relation.name)}
        declaredBy={source.declared_by ?? null}
        grants={source.grants ?? []}
        again={again}
      />
      <section aria-labelledby="dead">
        <div class="section-head"><h2 id="dead">Dead letters</h2></div>
        {letters ? <DeadLetters source={source.name} /> : <Empty title="None"><p>Malformed records are stored here, whole, for you to retry or drop.</p></Empty>}
      </section>
    </div>
  );
}

/** Positions are for those who may read the source: they can be values of a record. */
function positionOf(source: Source, relation: Relation): string {
  if (relation.name in source.positions) return shown(source.positions[relation.name]);
  return relation.views.length ? "not known, or not for you" : "none: no view reads it";
}

function Actions({ source }: { source: Source }) {
  const [isConfirming, setConfirming] = useState(false);
  if (!mayOperate()) return null;
  const path = `/sources/${encodeURIComponent(source.name)}`;
  const drop = async (): Promise<void> => {
    await call("DELETE", path);
    tell(`Dropped ${source.name}`);
    void refresh();
    go("#/");
  };
  return (
    <>
      {offers("PUT /sources/{}") && <a class="button small" href={`#${path}/change`}>Change options</a>}
      <button type="button" class="danger small" onClick={() => setConfirming(true)}>Drop source</button>
      {isConfirming && (
        <Confirm title="Drop this source?" action="Drop it" run={drop} onClose={() => setConfirming(false)}>
          <p>
            <strong><Text>{source.name}</Text></strong> and its dead letters will be removed. What it reads from is not touched.
            A source that a view reads is not dropped.
          </p>
        </Confirm>
      )}
    </>
  );
}

/** The option where reading of a relation starts; undefined for types without one. */
function startOf(type: string): Schema | undefined {
  const options = optionSchemas("CreateSource")[type]?.properties ?? {};
  const named = Object.values(options).map((option) => itemOf(option).properties?.start);
  return named.find((start) => start !== undefined);
}

/** Reads a relation from another start: its views are paused, then built again. */
function Reset({ source, relation, again }: { source: Source; relation: string; again: () => void }) {
  const [isOpen, setOpen] = useState(false);
  const start = startOf(source.type);
  if (!start || !mayOperate() || !offers("POST /sources/{}/reset")) return null;
  const close = (): void => {
    setOpen(false);
    again();
  };
  return (
    <span class="end">
      <button type="button" class="small" aria-label={`Read ${relation} from another start`} onClick={() => setOpen(true)}>Read again from…</button>
      {isOpen && (
        <Suspense fallback={null}>
          <ResetDialog source={source.name} relation={relation} start={start} onClose={close} />
        </Suspense>
      )}
    </span>
  );
}
