// A new source of any type, or other options of one. The form is made from the type's schema.
import { useState } from "preact/hooks";
import { call, offers, optionSchemas, type Problem } from "../lib/api";
import { useOptions } from "../lib/options";
import { refresh } from "../lib/live";
import { go } from "../lib/router";
import type { Schema } from "../lib/schema";
import { usePolled, useWork } from "../lib/use";
import { AsJson } from "../parts/as_json";
import { ProblemNote, Skeleton, Text } from "../parts/basic";
import { isOfName, NameField } from "../parts/name_field";
import { OptionsForm } from "../parts/options_form";
import { tell } from "../parts/toasts";

const sourceHref = (name: string): string => `#/sources/${encodeURIComponent(name)}`;

function Crumbs({ name }: { name?: string }) {
  return (
    <nav class="crumbs" aria-label="Breadcrumb">
      <a href="#/">Views</a> / {name === undefined ? "Sources" : <a href={sourceHref(name)}><Text>{name}</Text></a>}
    </nav>
  );
}

export function NewSourceScreen() {
  const schemas = optionSchemas("CreateSource");
  const types = Object.keys(schemas);
  const [type, setType] = useState("");
  const [name, setName] = useState("");
  const chosen = schemas[type] ? type : types[0];
  if (chosen === undefined) return <div class="screen"><h1>New source</h1><Skeleton rows={6} wide /></div>;
  const naming = (problem: Problem | null) => (
    <div class="options">
      <div class="option">
        <label for="new-type">Type</label>
        <select id="new-type" value={chosen} aria-describedby="new-type-about" onChange={(event) => setType(event.currentTarget.value)}>
          {types.map((one) => <option key={one} value={one}>{schemas[one]?.title ?? one}</option>)}
        </select>
        <p class="about" id="new-type-about">{schemas[chosen]?.description}</p>
      </div>
      <NameField
        what="Name"
        about="Queries use it like a schema: name.relation. Lower case letters, digits and _."
        value={name}
        problem={problem}
        onName={setName}
      />
    </div>
  );
  const save = async (options: unknown): Promise<void> => {
    await call("POST", "/sources", { name: name.trim(), type: chosen, options });
    tell(`Source ${name.trim()} is declared`);
    void refresh();
    go(sourceHref(name.trim()));
  };
  return (
    <div class="screen">
      <Crumbs />
      <SourceForm
        key={chosen}
        title="New source"
        action="Create source"
        type={chosen}
        schema={schemas[chosen] ?? {}}
        naming={naming}
        body={(options) => ({ name, type: chosen, options })}
        save={save}
      />
    </div>
  );
}

interface Source {
  type: string;
  options: Record<string, unknown>;
}

export function ChangeSourceScreen({ name }: { name: string }) {
  const { value: source, problem } = usePolled<Source>(`/sources/${encodeURIComponent(name)}`);
  const schema = source ? optionSchemas("CreateSource")[source.type] : undefined;
  if (!source || !schema) {
    return <div class="screen"><h1><Text>{name}</Text></h1>{problem ? <ProblemNote problem={problem} /> : <Skeleton rows={6} wide />}</div>;
  }
  const save = async (options: unknown): Promise<void> => {
    await call("PUT", `/sources/${encodeURIComponent(name)}`, { options });
    tell(`The options of ${name} are changed`);
    void refresh();
    go(sourceHref(name));
  };
  return (
    <div class="screen">
      <Crumbs name={name} />
      <SourceForm
        title={`Options of ${name}`}
        action="Change options"
        type={source.type}
        schema={schema}
        options={source.options}
        naming={() => <p class="dim">Relations that a view reads must stay as they are.</p>}
        body={(options) => ({ options })}
        save={save}
      />
    </div>
  );
}

function SourceForm({ title, action, type, schema, options, naming, body, save }: {
  title: string;
  action: string;
  type: string;
  schema: Schema;
  options?: unknown;
  naming: (problem: Problem | null) => preact.ComponentChild;
  body: (options: unknown) => unknown;
  save: (options: unknown) => Promise<void>;
}) {
  const form = useOptions(schema, options);
  const { isBusy, problem, run } = useWork();
  const refusal = isOfName(problem) ? null : form.placeOf(problem);
  const submit = (event: Event): void => {
    event.preventDefault();
    void run(async () => save(form.json()));
  };
  const propose = (): void => {
    void run(async () => {
      const found = await call<{ options: unknown }>("POST", "/sources/discover", { type, options: form.json() });
      form.fill(found.options);
      tell("Columns without a declaration are proposed: check them");
    });
  };
  // A clock has nothing to discover.
  const canPropose = offers("POST /sources/discover") && (schema.required ?? []).length > 0;
  return (
    <form class="options-form" onSubmit={submit} noValidate>
      <div class="title">
        <h1><Text>{title}</Text></h1>
      </div>
      {naming(problem)}
      <OptionsForm schema={schema} state={form.state} refusal={refusal} onState={form.setState} />
      {problem && !refusal && !isOfName(problem) && <ProblemNote problem={problem} />}
      <AsJson body={() => body(form.json())} />
      <footer>
        {canPropose && (
          <button type="button" disabled={isBusy} onClick={propose} title="Reads samples; nothing is created">Propose columns</button>
        )}
        <button type="submit" class="primary" disabled={isBusy}>{isBusy ? "Reaching the source…" : action}</button>
      </footer>
    </form>
  );
}
