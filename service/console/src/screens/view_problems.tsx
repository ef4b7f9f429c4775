// The problems of a view: its failure, its error rows, and dead letters of its sources.
import { useState } from "preact/hooks";
import { offers, viewPath } from "../lib/api";
import { ago, compact } from "../lib/format";
import { figureName } from "../lib/names";
import { usePolled } from "../lib/use";
import { Empty, ProblemNote, Skeleton, Text } from "../parts/basic";
import { DeadLetters } from "../parts/dead_letters";
import { useOpened, Value } from "../parts/values";
import { type TabProps, wordsFor } from "./view";

interface LeftOut {
  id: string;
  operator: string;
  sqlstate: string;
  message: string;
  source_row: string;
  count: number;
  first_seen: string;
}

interface SourceFacts {
  name: string;
  relations: { name: string; views: string[]; dead_letters: number }[];
}

export function ProblemsTab({ name, view }: TabProps) {
  const { value: reported } = usePolled<{ sources: SourceFacts[] }>("/sources", 5000);
  const read = (reported?.sources ?? []).flatMap((source) =>
    source.relations
      .filter((relation) => relation.dead_letters > 0 && relation.views.includes(figureName(view)))
      .map((relation) => ({ source: source.name, relation: relation.name, count: relation.dead_letters })),
  );
  const isWell = !view.error && !view.errors && !read.length;
  return (
    <>
      {view.error && <p class="dim">{wordsFor(view.status)}: <Text>{view.error.title}</Text> <span class="tag mono">{view.error.code}</span></p>}
      {isWell && (
        <Empty title="All is well">
          <p>
            If an expression of the query fails for a source row, the view leaves that row out. It is listed here
            until it is corrected. Malformed records of the view's sources are listed here too.
          </p>
        </Empty>
      )}
      {view.errors > 0 && offers("GET /views/{}/errors") && <LeftOutRows name={name} total={view.errors} />}
      {read.map((some) => (
        <section key={`${some.source}.${some.relation}`}>
          <div class="section-head">
            <h2>Dead letters of <Text>{`${some.source}.${some.relation}`}</Text> <span class="dim">{compact(some.count)}</span></h2>
          </div>
          <DeadLetters source={some.source} relation={some.relation} />
        </section>
      ))}
    </>
  );
}

function LeftOutRows({ name, total }: { name: string; total: number }) {
  const [pages, setPages] = useState<string[]>([]);
  const after = pages.at(-1) ?? "";
  const path = `${viewPath(name)}/errors?limit=50${after ? `&after=${encodeURIComponent(after)}` : ""}`;
  const { value, problem } = usePolled<{ errors: LeftOut[]; next: string | null }>(path, 3000);
  const { dialog, open } = useOpened();
  return (
    <section aria-labelledby="left-out">
      <div class="section-head">
        <h2 id="left-out">Error rows <span class="dim">{compact(total)}</span></h2>
        <span class="pager">
          <button type="button" class="small" disabled={!pages.length} onClick={() => setPages(pages.slice(0, -1))}>Previous</button>
          <button type="button" class="small" disabled={!value?.next} onClick={() => value?.next && setPages([...pages, value.next])}>Next</button>
        </span>
      </div>
      {problem && <ProblemNote problem={problem} />}
      {!value && !problem && <Skeleton wide />}
      {value && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Error rows">
          <table class="rows">
            <thead>
              <tr>
                <th scope="col">Why</th><th scope="col">Row</th><th scope="col">Where</th>
                <th scope="col" class="number">Times</th><th scope="col">Since</th>
              </tr>
            </thead>
            <tbody>
              {value.errors.map((error) => (
                <tr key={error.id}>
                  <td><Text>{error.message}</Text> <span class="tag mono">{error.sqlstate}</span></td>
                  <td class="mono"><Value value={error.source_row} column={{ name: "row", type: "text" }} onOpen={open} /></td>
                  <td class="dim"><Text>{error.operator}</Text></td>
                  <td class="number">{compact(error.count)}</td>
                  <td class="dim">{ago(error.first_seen)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p class="dim">Correct the row at the source; the view then includes it without further action.</p>
      {dialog}
    </section>
  );
}
