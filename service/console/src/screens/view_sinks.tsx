// The additional sinks of a view: how each stands, and forms to add and drop one.
import { useState } from "preact/hooks";
import { call, mayOperate, offers, optionSchemas, viewPath } from "../lib/api";
import { ago, bytes, count, shown } from "../lib/format";
import { refresh, type ReportedError } from "../lib/live";
import { useOptions } from "../lib/options";
import type { Schema } from "../lib/schema";
import { usePolled, useWork } from "../lib/use";
import { AsJson } from "../parts/as_json";
import { Empty, ProblemNote, Skeleton, Status, Text } from "../parts/basic";
import { Confirm } from "../parts/confirm";
import { isOfName, NameField } from "../parts/name_field";
import { OptionsForm } from "../parts/options_form";
import { tell } from "../parts/toasts";
import type { TabProps } from "./view";

interface Sink {
  name: string;
  type: string;
  status: string;
  options: Record<string, unknown>;
  epoch: number | null;
  positions: Record<string, unknown>;
  backlog_bytes: number | null;
  error: ReportedError | null;
  created_at: string;
  live_at: string | null;
}

export function SinksTab({ name, view }: TabProps) {
  const { value, problem, again } = usePolled<{ sinks: Sink[] }>(`${viewPath(name)}/sinks`, 2000);
  const [isAdding, setAdding] = useState(false);
  const schemas = optionSchemas("CreateSink");
  const mayAdd = mayOperate() && offers("POST /views/{}/sinks") && Object.keys(schemas).length > 0;
  if (!value) return problem ? <ProblemNote problem={problem} /> : <Skeleton rows={3} wide />;
  const done = (): void => {
    setAdding(false);
    again();
    void refresh();
  };
  return (
    <>
      <div class="section-head">
        <p class="dim">The view always has its table in PostgreSQL. A sink writes its changes to another target as well.</p>
        {mayAdd && !isAdding && (
          <button type="button" class="small" disabled={view.status !== "live"} onClick={() => setAdding(true)}>Add a sink</button>
        )}
      </div>
      {isAdding && <NewSink name={name} schemas={schemas} onDone={done} onCancel={() => setAdding(false)} />}
      {value.sinks.map((sink) => (
        <SinkSection key={sink.name} view={name} sink={sink} schema={schemas[sink.type]} again={done} />
      ))}
      {!value.sinks.length && !isAdding && <Empty title="No additional sinks"><p>Files, lakes, topics, other databases and webhooks can follow this view.</p></Empty>}
    </>
  );
}

function SinkSection({ view, sink, schema, again }: { view: string; sink: Sink; schema?: Schema; again: () => void }) {
  const [isConfirming, setConfirming] = useState(false);
  const [isErased, setErased] = useState(false);
  const drop = async (): Promise<void> => {
    const path = `${viewPath(view)}/sinks/${encodeURIComponent(sink.name)}`;
    await call("DELETE", `${path}?drop_data=${isErased}`);
    tell(`Dropped ${sink.name}`);
    again();
  };
  const facts: [string, preact.ComponentChild][] = [
    ["Promise", schema?.["x-promise"] ?? "–"],
    ["Position", sink.epoch === null ? "nothing written yet" : <>epoch {count(sink.epoch)}<Positions positions={sink.positions} /></>],
    ["Lag", sink.backlog_bytes ? `${bytes(sink.backlog_bytes)} wait to be written` : "nothing waits"],
    ["Live since", sink.live_at ? ago(sink.live_at) : "–"],
    ["Options", <code><Text>{JSON.stringify(sink.options)}</Text></code>],
  ];
  return (
    <section class="sink" aria-label={`sink ${sink.name}`}>
      <div class="section-head">
        <h2><Text>{sink.name}</Text><span class="tag">{schema?.title ?? sink.type}</span></h2>
        <span class="end">
          <Status status={sink.status} />
          {mayOperate() && sink.status !== "dropping" && (
            <button type="button" class="danger small" aria-label={`Drop ${sink.name}`} onClick={() => setConfirming(true)}>Drop</button>
          )}
        </span>
      </div>
      {sink.error && <ProblemNote problem={sink.error} what={sink.status} />}
      <dl class="facts">{facts.map(([label, value]) => <><dt>{label}</dt><dd>{value}</dd></>)}</dl>
      {isConfirming && (
        <Confirm title="Drop this sink?" action="Drop it" run={drop} onClose={() => setConfirming(false)}>
          <p><strong><Text>{sink.name}</Text></strong> will not be written any more. The view stays.</p>
          <label class="tick">
            <input type="checkbox" checked={isErased} onChange={(event) => setErased(event.currentTarget.checked)} />
            Also delete what it has written
          </label>
        </Confirm>
      )}
    </section>
  );
}

function Positions({ positions }: { positions: Record<string, unknown> }) {
  return <>{Object.entries(positions).map(([source, at]) => <span key={source} class="dim"> · <Text>{`${source} ${shown(at)}`}</Text></span>)}</>;
}

function NewSink({ name, schemas, onDone, onCancel }: {
  name: string;
  schemas: Record<string, Schema>;
  onDone: () => void;
  onCancel: () => void;
}) {
  const types = Object.keys(schemas);
  const [type, setType] = useState(types[0] ?? "");
  const [sinkName, setName] = useState("");
  return (
    <section aria-label="Add a sink" class="adding">
      <div class="options">
        <div class="option">
          <label for="new-type">Type</label>
          <select id="new-type" value={type} aria-describedby="new-type-about" onChange={(event) => setType(event.currentTarget.value)}>
            {types.map((one) => <option key={one} value={one}>{schemas[one]?.title ?? one}</option>)}
          </select>
          <p class="about" id="new-type-about">{schemas[type]?.description} {schemas[type]?.["x-promise"]}</p>
        </div>
      </div>
      <SinkForm
        key={type}
        view={name}
        type={type}
        schema={schemas[type] ?? {}}
        sinkName={sinkName}
        onName={setName}
        onDone={onDone}
        onCancel={onCancel}
      />
    </section>
  );
}

function SinkForm({ view, type, schema, sinkName, onName, onDone, onCancel }: {
  view: string;
  type: string;
  schema: Schema;
  sinkName: string;
  onName: (name: string) => void;
  onDone: () => void;
  onCancel: () => void;
}) {
  const form = useOptions(schema);
  const { isBusy, problem, run } = useWork();
  const refusal = isOfName(problem) ? null : form.placeOf(problem);
  const body = (): unknown => ({ name: sinkName.trim(), type, options: form.json() });
  const submit = (event: Event): void => {
    event.preventDefault();
    void run(async () => {
      await call("POST", `${viewPath(view)}/sinks`, body());
      tell(`Sink ${sinkName.trim()} begins with its first rows`);
      onDone();
    });
  };
  return (
    <form class="options-form" onSubmit={submit} noValidate>
      <div class="options">
        <NameField what="Name" about="Of the sink, within this view." value={sinkName} problem={problem} onName={onName} />
      </div>
      <OptionsForm schema={schema} state={form.state} refusal={refusal} onState={form.setState} />
      {problem && !refusal && !isOfName(problem) && <ProblemNote problem={problem} />}
      <AsJson body={body} />
      <footer>
        <button type="button" onClick={onCancel}>Cancel</button>
        <button type="submit" class="primary" disabled={isBusy}>{isBusy ? "Checking the target…" : "Add sink"}</button>
      </footer>
    </form>
  );
}
