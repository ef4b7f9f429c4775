// A query for reading.
import { laidOut, tokensOf } from "../lib/sql";
import { Copy } from "./basic";

export function Sql({ query, label = "Query" }: { query: string; label?: string }) {
  return (
    <figure class="snippet sql">
      <figcaption>{label}<Copy text={query} /></figcaption>
      <pre tabIndex={0}>
        <code>
          {tokensOf(laidOut(query)).map((token, i) =>
            token.kind === "space" || token.kind === "name" || token.kind === "sign"
              ? token.text
              : <span key={i} class={`sql-${token.kind}`}>{token.text}</span>,
          )}
        </code>
      </pre>
    </figure>
  );
}
