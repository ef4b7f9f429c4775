// An external source: its relations and its dead letters.
import { compact, count, rate } from "../lib/format";
import { newest, type ReportedError } from "../lib/live";
import { usePolled } from "../lib/use";
import { Empty, Figure, ProblemNote, Skeleton, Status, Text } from "../parts/basic";
import { DeadLetters } from "../parts/dead_letters";
import { Fields } from "../parts/fields";
import { RetryButton } from "../parts/source_retry";

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
        {source.status !== "running" && <span class="end"><RetryButton name={source.name} again={again} /></span>}
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
            </span>
          </div>
          <Fields fields={relation.fields} keyNames={relation.key} />
        </section>
      ))}
      <section aria-labelledby="dead">
        <div class="section-head"><h2 id="dead">Dead letters</h2></div>
        {letters ? <DeadLetters source={source.name} /> : <Empty title="None"><p>Malformed records are stored here, whole, for you to retry or drop.</p></Empty>}
      </section>
    </div>
  );
}

