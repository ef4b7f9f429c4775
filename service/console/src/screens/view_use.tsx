// Snippets that read the view from other programs.
import { token } from "../lib/api";
import { sqlName } from "../lib/names";
import { Snippet, Text } from "../parts/basic";
import type { TabProps } from "./view";

export function UseTab({ name, view }: TabProps) {
  const table = `${sqlName(view.schema)}.${sqlName(view.name)}`;
  const path = `${location.origin}/views/${encodeURIComponent(name)}`;
  const bearer = token.value ? " -H \"Authorization: Bearer $TIDEMARK_TOKEN\"" : "";
  const newest = view.positions.source ?? Object.values(view.positions)[0];
  return (
    <>
      <section aria-labelledby="positions">
        <div class="section-head"><h2 id="positions">Position</h2></div>
        <p class="dim">The rows show every commit of the source up to here, and none after.</p>
        <dl class="facts">
          {Object.entries(view.positions).map(([source, position]) => (
            <FactRow key={source} name={source} value={position} />
          ))}
          {!Object.keys(view.positions).length && <><dt>none</dt><dd>until the view is live</dd></>}
        </dl>
      </section>
      <Snippet label="psql: read it" text={`SELECT * FROM ${table} LIMIT 100;`} />
      <Snippet
        label="psql: read your own writes"
        text={`BEGIN; /* your changes */ COMMIT;\nSELECT tidemark.wait();\nSELECT * FROM ${table};`}
      />
      <Snippet label="curl: rows" text={`curl -s${bearer} '${path}/rows?limit=100'`} />
      <Snippet label="curl: follow its changes" text={`curl -sN${bearer} '${path}/changes?snapshot=true'`} />
      <Snippet
        label="curl: wait for a position"
        text={`curl -s${bearer} '${path}/wait?position=${newest ?? "0/1A2B3C"}&timeout_s=5'`}
      />
      <Snippet
        label="Python"
        text={`import tidemark\n\nwith tidemark.connect("${location.origin}") as client:\n    print(client.view(${JSON.stringify(name)}).state().status)`}
      />
    </>
  );
}

function FactRow({ name, value }: { name: string; value: string }) {
  return <><dt><Text>{name}</Text></dt><dd class="mono"><Text>{value}</Text></dd></>;
}
