// A form made from the schema of a type's options. Each field has a label, its unit and what it
// means; the service's error stands beside the option that it names.
import type { ComponentChildren } from "preact";
import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import type { Problem } from "../lib/api";
import {
  entryPath,
  isFilled,
  itemOf,
  joined,
  kindOf,
  typeOf,
  type Entry,
  type GroupState,
  type Schema,
  type State,
} from "../lib/schema";
import { Text } from "./basic";

/** The option that is wrong, by its path in the form, and why. */
export interface Refusal {
  path: string;
  problem: Problem;
}

const Refused = createContext<Refusal | null>(null);

interface Props {
  schema: Schema;
  state: State;
  path: string;
  isRequired?: boolean;
  onState: (state: State) => void;
}

export function OptionsForm({ schema, state, refusal, onState }: {
  schema: Schema;
  state: GroupState;
  refusal: Refusal | null;
  onState: (state: GroupState) => void;
}) {
  const problem = refusal?.problem;
  useEffect(() => {
    // An option behind "More options" is there once its group has opened.
    const timer = setTimeout(() => refusal && document.getElementById(idOf(refusal.path))?.focus());
    return () => clearTimeout(timer);
  }, [problem]);
  return (
    <Refused.Provider value={refusal}>
      <Options schema={schema} state={state} path="" onState={onState} />
    </Refused.Provider>
  );
}

export const idOf = (path: string): string => `option-${path}`;

/** All options of a group, with those that are rarely needed behind a control. */
function Options({ schema, state, path, onState }: {
  schema: Schema;
  state: GroupState;
  path: string;
  onState: (state: GroupState) => void;
}) {
  const refusal = useContext(Refused);
  const options = Object.entries(schema.properties ?? {}).filter(([, option]) => !option.deprecated);
  const show = ([name, option]: [string, Schema]) => (
    <Field
      key={name}
      schema={option}
      state={state[name]}
      path={joined(path, name)}
      isRequired={schema.required?.includes(name)}
      onState={(value) => onState({ ...state, [name]: value })}
    />
  );
  const rare = options.filter(([, option]) => option["x-advanced"]);
  const isOpen = rare.some(([name, option]) => {
    const at = joined(path, name);
    return isFilled(option, state[name]) || refusal?.path === at || refusal?.path.startsWith(`${at}.`);
  });
  return (
    <div class="options">
      {options.filter(([, option]) => !option["x-advanced"]).map(show)}
      {rare.length > 0 && <More isOpen={isOpen}>{rare.map(show)}</More>}
    </div>
  );
}

function More({ isOpen, children }: { isOpen: boolean; children: ComponentChildren }) {
  const [isShown, setShown] = useState(isOpen);
  useEffect(() => {
    if (isOpen) setShown(true);
  }, [isOpen]);
  return (
    <details class="rare" open={isShown} onToggle={(event) => setShown(event.currentTarget.open)}>
      <summary>More options</summary>
      {isShown && <div class="options">{children}</div>}
    </details>
  );
}

function Field(props: Props) {
  switch (kindOf(props.schema)) {
    case "group":
      return <Group {...props} />;
    case "named":
      return <Named {...props} />;
    case "pairs":
      return <Pairs {...props} />;
    case "rows":
      return <Rows {...props} />;
    case "flag":
      return <Flag {...props} />;
    default:
      return <Simple {...props} />;
  }
}

/** A field of one value: its label, control, meaning and error. */
function Simple({ schema, state, path, isRequired, onState }: Props) {
  const refusal = useRefusal(path);
  const kind = kindOf(schema);
  const value = typeof state === "string" ? state : "";
  const shared = {
    id: idOf(path),
    value,
    "aria-describedby": `${idOf(path)}-about${refusal ? ` ${idOf(path)}-error` : ""}`,
    "aria-invalid": refusal !== null,
    "aria-required": isRequired === true,
    onInput: (event: { currentTarget: { value: string } }) => onState(event.currentTarget.value),
  };
  const lines = schema["x-lines"] ?? (kind === "json" && schema["x-json"] === "json" ? 2 : 1);
  return (
    <div class={lines > 1 ? "option wide" : "option"}>
      <Label schema={schema} path={path} isRequired={isRequired} />
      {kind === "choice" ? (
        <select {...shared}>
          <option value="">{schema.default === undefined ? "–" : `${String(schema.default)} (default)`}</option>
          {schema.enum?.filter((word) => word !== schema.default || word === value).map((word) => <option key={word}>{word}</option>)}
        </select>
      ) : lines > 1 ? (
        <textarea {...shared} rows={lines} spellcheck={false} placeholder={hintOf(schema)} />
      ) : (
        <input
          {...shared}
          type="text"
          inputMode={kind !== "number" ? undefined : typeOf(schema) === "integer" ? "numeric" : "decimal"}
          spellcheck={false}
          autoComplete="off"
          placeholder={hintOf(schema)}
        />
      )}
      <About schema={schema} path={path} refusal={refusal} />
    </div>
  );
}

/** The default, or an example of what to write. */
function hintOf(schema: Schema): string {
  if (schema.default !== undefined) return String(schema.default);
  const [example] = schema.examples ?? [];
  return example === undefined ? "" : Array.isArray(example) ? example.join(", ") : String(example);
}

function Label({ schema, path, isRequired }: { schema: Schema; path: string; isRequired?: boolean }) {
  const unit = schema["x-unit"];
  return (
    <label for={idOf(path)}>
      {schema.title}
      {unit && <span> ({unit})</span>}
      {isRequired && <span class="required" aria-hidden="true">required</span>}
    </label>
  );
}

function About({ schema, path, refusal }: { schema: Schema; path: string; refusal: Problem | null }) {
  const kind = kindOf(schema);
  return (
    <>
      <p class="about" id={`${idOf(path)}-about`}>
        {schema.description}
        {kind === "texts" && " Separated by commas."}
      </p>
      <Why path={path} refusal={refusal} />
    </>
  );
}

function Why({ path, refusal }: { path: string; refusal: Problem | null }) {
  if (!refusal) return null;
  return (
    <p class="why" id={`${idOf(path)}-error`} role="alert">
      <strong><Text>{refusal.title}</Text></strong>
      {refusal.detail && <Text>{refusal.detail}</Text>}
      {refusal.hint && <span>Hint: <Text>{refusal.hint}</Text></span>}
      <code>{refusal.code}</code>
    </p>
  );
}

function useRefusal(path: string): Problem | null {
  const refusal = useContext(Refused);
  return refusal?.path === path ? refusal.problem : null;
}

function Flag({ schema, state, path, onState }: Props) {
  const refusal = useRefusal(path);
  const isOn = typeof state === "boolean" ? state : schema.default === true;
  return (
    <div class="option">
      <label class="tick">
        <input
          type="checkbox"
          id={idOf(path)}
          checked={isOn}
          aria-describedby={`${idOf(path)}-about${refusal ? ` ${idOf(path)}-error` : ""}`}
          aria-invalid={refusal !== null}
          onChange={(event) => onState(event.currentTarget.checked)}
        />
        {schema.title}
      </label>
      <About schema={schema} path={path} refusal={refusal} />
    </div>
  );
}

/** A group of options. One that may be missing is switched on by its title. */
function Group({ schema, state, path, isRequired, onState }: Props) {
  const refusal = useRefusal(path);
  const group = state as GroupState | undefined;
  const isOn = isRequired || group !== undefined;
  return (
    <fieldset class="wide" aria-describedby={`${idOf(path)}-about`}>
      <legend>
        {isRequired ? <span id={idOf(path)} tabIndex={-1}>{schema.title}</span> : (
          <label class="tick">
            <input
              type="checkbox"
              id={idOf(path)}
              checked={isOn}
              onChange={(event) => onState(event.currentTarget.checked ? {} : undefined)}
            />
            {schema.title}
          </label>
        )}
      </legend>
      <About schema={schema} path={path} refusal={refusal} />
      {isOn && <Options schema={schema} state={group ?? {}} path={path} onState={onState} />}
    </fieldset>
  );
}

function replaced<T>(list: T[], at: number, value: T): T[] {
  return list.map((one, i) => (i === at ? value : one));
}

function without<T>(list: T[], at: number): T[] {
  return list.filter((_, i) => i !== at);
}

/** Objects whose names the user chooses: relations, topics, tables. */
function Named({ schema, state, path, isRequired, onState }: Props) {
  const refusal = useRefusal(path);
  const entries = (state as Entry[] | undefined) ?? (isRequired ? [{ name: "", value: {} }] : []);
  const item = itemOf(schema);
  const one = (item.title ?? "entry").toLowerCase();
  return (
    <section class="wide named" aria-label={schema.title}>
      <h2 id={idOf(path)} tabIndex={-1}>{schema.title}</h2>
      <About schema={schema} path={path} refusal={refusal} />
      {entries.map((entry, i) => ({ entry, at: entryPath(path, entries, i) })).map(({ entry, at }, i) => (
        <fieldset key={i}>
          <legend>{item.title} {i + 1}</legend>
          <div class="option naming-row">
            <label for={idOf(at)}>
              Name of the {one}
              <span class="required" aria-hidden="true">required</span>
            </label>
            <input
              type="text"
              id={idOf(at)}
              value={entry.name}
              aria-required
              spellcheck={false}
              autoComplete="off"
              onInput={(event) => onState(replaced(entries, i, { ...entry, name: event.currentTarget.value }))}
            />
          </div>
          <EntryWhy path={at} />
          <Options
            schema={item}
            state={(entry.value ?? {}) as GroupState}
            path={at}
            onState={(value) => onState(replaced(entries, i, { ...entry, value }))}
          />
          {entries.length > 1 && (
            <button type="button" class="small" onClick={() => onState(without(entries, i))}>
              Remove {one} <Text>{entry.name || String(i + 1)}</Text>
            </button>
          )}
        </fieldset>
      ))}
      <button type="button" class="small" onClick={() => onState([...entries, { name: "", value: {} }])}>Add a {one}</button>
    </section>
  );
}

function EntryWhy({ path }: { path: string }) {
  return <Why path={path} refusal={useRefusal(path)} />;
}

/** Texts by name, such as headers. */
function Pairs({ schema, state, path, onState }: Props) {
  const refusal = useRefusal(path);
  const entries = (state as Entry[] | undefined) ?? [];
  const title = schema.title ?? "";
  return (
    <fieldset class="wide" aria-describedby={`${idOf(path)}-about`}>
      <legend id={idOf(path)} tabIndex={-1}>{title}</legend>
      <About schema={schema} path={path} refusal={refusal} />
      {entries.map((entry, i) => (
        <div key={i} class="cells">
          <input
            type="text"
            aria-label={`${title}: name ${i + 1}`}
            placeholder="name"
            value={entry.name}
            spellcheck={false}
            onInput={(event) => onState(replaced(entries, i, { ...entry, name: event.currentTarget.value }))}
          />
          <input
            type="text"
            aria-label={`${title}: value ${i + 1}`}
            placeholder="value, or ${env:NAME}"
            value={String(entry.value ?? "")}
            spellcheck={false}
            onInput={(event) => onState(replaced(entries, i, { ...entry, value: event.currentTarget.value }))}
          />
          <button type="button" class="quiet small" aria-label={`Remove ${title} ${i + 1}`} onClick={() => onState(without(entries, i))}>✕</button>
        </div>
      ))}
      <button type="button" class="small" onClick={() => onState([...entries, { name: "", value: "" }])}>Add</button>
    </fieldset>
  );
}

/** A list of small objects, each in one line: columns. */
function Rows({ schema, state, path, isRequired, onState }: Props) {
  const refusal = useRefusal(path);
  const rows = (state as GroupState[] | undefined) ?? [];
  const item = itemOf(schema);
  const options = Object.entries(item.properties ?? {});
  const one = (item.title ?? "row").toLowerCase();
  const usual = options.filter(([, option]) => !option["x-advanced"]);
  const rare = options.filter(([, option]) => option["x-advanced"]);
  const cell = (row: GroupState, i: number) => ([name, option]: [string, Schema]) => (
    <Cell
      key={name}
      schema={option}
      label={`${option.title} of ${one} ${i + 1}`}
      state={row[name]}
      onState={(value) => onState(replaced(rows, i, { ...row, [name]: value }))}
    />
  );
  return (
    <fieldset class="wide" aria-describedby={`${idOf(path)}-about`}>
      <legend id={idOf(path)} tabIndex={-1}>
        {schema.title}
        {isRequired && <span class="required" aria-hidden="true">required</span>}
      </legend>
      <About schema={schema} path={path} refusal={refusal} />
      {rows.map((row, i) => (
        <div key={i} class="cells">
          {usual.map(cell(row, i))}
          {rare.length > 0 && (
            <More isOpen={rare.some(([name, option]) => isFilled(option, row[name]))}>{rare.map(cell(row, i))}</More>
          )}
          <button type="button" class="quiet small" aria-label={`Remove ${one} ${i + 1}`} onClick={() => onState(without(rows, i))}>✕</button>
        </div>
      ))}
      <button type="button" class="small" onClick={() => onState([...rows, {}])}>Add a {one}</button>
    </fieldset>
  );
}

function Cell({ schema, label, state, onState }: {
  schema: Schema;
  label: string;
  state: State;
  onState: (state: State) => void;
}) {
  const kind = kindOf(schema);
  if (kind === "flag") {
    const isOn = typeof state === "boolean" ? state : schema.default === true;
    return (
      <label class="tick" title={schema.description}>
        <input type="checkbox" aria-label={label} checked={isOn} onChange={(event) => onState(event.currentTarget.checked)} />
        {schema.title}
      </label>
    );
  }
  const value = typeof state === "string" ? state : "";
  const shared = { "aria-label": label, title: schema.description, value };
  if (kind === "choice") {
    return (
      <select {...shared} onChange={(event) => onState(event.currentTarget.value)}>
        <option value="">{schema.title}: {String(schema.default ?? "–")}</option>
        {schema.enum?.map((word) => <option key={word}>{word}</option>)}
      </select>
    );
  }
  return (
    <input
      {...shared}
      type="text"
      spellcheck={false}
      autoComplete="off"
      placeholder={`${schema.title}${schema.examples ? `, as ${hintOf(schema)}` : ""}`}
      onInput={(event) => onState(event.currentTarget.value)}
    />
  );
}
