// No view yet: what a view is, and how to create one.
import { mayOperate } from "../lib/api";
import type { Overview } from "../lib/live";
import { Snippet } from "../parts/basic";

const EXAMPLE = `SELECT c.region,
       count(*) AS orders,
       sum(o.amount) AS revenue
FROM orders o
JOIN customers c ON c.id = o.customer_id
GROUP BY c.region`;

export function Welcome({ reported }: { reported: Overview }) {
  const isUp = reported.pipelines.some((pipeline) => pipeline.is_up);
  return (
    <div class="screen welcome">
      <h1>Keep the answer of a query up to date</h1>
      <p class="lead">
        A view is a SELECT over the tables of your database. Its answer is a plain PostgreSQL table, and every commit
        reaches that table in milliseconds, without running the query again.
      </p>
      {mayOperate() && (
        <p>
          <a class="button primary" href={`#/new?query=${encodeURIComponent(EXAMPLE)}`}>Create your first view</a>{" "}
          <a class="button" href="#/new-source">Connect a source besides the database</a>
        </p>
      )}
      <ol class="steps">
        <li><strong>Write a SELECT.</strong> Joins, aggregates, windows, subqueries: nearly everything that PostgreSQL takes.</li>
        <li><strong>See what it would cost.</strong> Columns, key and plan are shown as you type; nothing is created yet.</li>
        <li><strong>Read it like any table.</strong> From psql, REST or a stream of its changes.</li>
      </ol>
      <div class="columns">
        <Snippet label="psql" text={`CALL tidemark.create_view('revenue', $$\n${EXAMPLE}\n$$);`} />
        <Snippet
          label="curl"
          text={`curl -s '${location.origin}/views?wait_s=60' \\\n  -H 'content-type: application/json' \\\n  -d '{"name": "revenue", "query": "SELECT ..."}'`}
        />
      </div>
      {!isUp && <p class="dim">The first view starts the pipeline; until then it has nothing to report.</p>}
    </div>
  );
}
