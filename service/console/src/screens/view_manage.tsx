// Operations on a view. A control is shown if the service has its route.
import { useState } from "preact/hooks";
import { call, mayOperate, offers, viewPath } from "../lib/api";
import { count, millis } from "../lib/format";
import { sqlName, titleOf } from "../lib/names";
import { go, viewHref } from "../lib/router";
import { useWork } from "../lib/use";
import { ProblemNote, Text } from "../parts/basic";
import { Confirm } from "../parts/confirm";
import { RebuildButton } from "../parts/rebuild";
import { tell } from "../parts/toasts";
import type { TabProps, ViewFacts } from "./view";

export function ManageTab(props: TabProps) {
  if (!mayOperate()) return <p class="nothing">Your role is read-only.</p>;
  return (
    <div class="operations">
      {offers("POST /views/{}/verify") && <Verify {...props} />}
      {offers("POST /views/{}/pause") && <Pause {...props} />}
      {offers("POST /views/{}/replace") && (
        <Operation title="Replace" what="Change the query. The current rows stay readable until the new ones are complete; one transaction then swaps them.">
          <a class="button" href={`#/new?replace=${encodeURIComponent(props.name)}`}>Edit the query</a>
        </Operation>
      )}
      {offers("POST /views/{}/rebuild") && <Rebuild {...props} />}
      {offers("POST /views/{}/rename") && <Rename {...props} />}
      <Drop {...props} />
    </div>
  );
}

function Operation({ title, what, children, isDanger = false }: {
  title: string;
  what: string;
  children: preact.ComponentChildren;
  isDanger?: boolean;
}) {
  return (
    <section class={isDanger ? "operation danger" : "operation"} aria-label={title}>
      <div>
        <h2>{title}</h2>
        <p class="dim">{what}</p>
      </div>
      <div class="act">{children}</div>
    </section>
  );
}

interface Verdict {
  result: "equal" | "different" | "open";
  rows: number;
  missing: number;
  surplus: number;
  different: number;
  alike: number;
  examples: Difference[];
  history?: HistoryFindings | null;
  reasons: string[];
  positions: Record<string, string>;
  took_ms: number;
}

interface HistoryFindings {
  rows: number;
  missing: number;
  surplus: number;
  different: number;
  periods: number;
  overlaps: number;
  examples: Difference[];
}

interface Difference {
  kind: string;
  key?: Record<string, unknown> | null;
  expected?: Record<string, unknown> | null;
  found?: Record<string, unknown> | null;
}

const WORDS = {
  equal: "Equal",
  different: "Different",
  open: "Rows differ, but the query allows both answers",
};

function Verify({ name, view }: TabProps) {
  const { isBusy, problem, run } = useWork();
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const verify = (): void => {
    setVerdict(null);
    void run(async () => setVerdict(await call<Verdict>("POST", `${viewPath(name)}/verify`)));
  };
  return (
    <Operation title="Verify" what="PostgreSQL runs the query at the view's position, and all rows are compared. Updates continue meanwhile.">
      <button type="button" disabled={isBusy || view.status !== "live"} onClick={verify}>{isBusy ? "Comparing…" : "Verify now"}</button>
      {verdict && <VerdictNote verdict={verdict} />}
      {problem && <ProblemNote problem={problem} />}
    </Operation>
  );
}

function historyWords({ rows, missing, surplus, different, periods, overlaps }: HistoryFindings): string {
  const wrong = Object.entries({ missing, surplus, different, periods, overlaps }).filter(([, n]) => n > 0);
  return `History: ${count(rows)} rows, ${wrong.map(([kind, n]) => `${count(n)} ${kind}`).join(", ") || "all right"}`;
}

function VerdictNote({ verdict }: { verdict: Verdict }) {
  const parts = [
    `${count(verdict.rows)} rows compared in ${millis(verdict.took_ms)}`,
    verdict.missing ? `${count(verdict.missing)} missing` : "",
    verdict.surplus ? `${count(verdict.surplus)} surplus` : "",
    verdict.different ? `${count(verdict.different)} different` : "",
    ...Object.values(verdict.positions).map((position) => `at ${position}`),
  ];
  const examples = [...verdict.examples, ...(verdict.history?.examples ?? [])];
  return (
    <div class={verdict.result === "equal" ? "verdict good" : "verdict bad"} role="status">
      <strong>{WORDS[verdict.result] ?? verdict.result}</strong>
      <span>{parts.filter(Boolean).join(" · ")}</span>
      {verdict.reasons.map((reason) => <span key={reason}><Text>{reason}</Text></span>)}
      {verdict.history && <span>{historyWords(verdict.history)}</span>}
      {examples.length > 0 && (
        <pre tabIndex={0}>
          {examples.map((example) => `${example.kind}\n  expected ${JSON.stringify(example.expected ?? null)}\n  found    ${JSON.stringify(example.found ?? null)}`).join("\n")}
        </pre>
      )}
    </div>
  );
}

function Pause({ name, view, again }: TabProps) {
  const { isBusy, problem, run } = useWork();
  const action = view.status === "paused" ? "resume" : "pause";
  const turn = (cascade: string): void => {
    void run(async () => {
      await call("POST", `${viewPath(name)}/${action}${cascade}`);
      tell(action === "resume" ? "The view is being resumed" : "The view is being paused");
      again();
    });
  };
  const what = {
    pause: "The rows stay as they are, and the source retains no WAL for the view. Resuming costs as much as creating it.",
    resume: "Computes the view from a new snapshot. The current rows stay readable until the new ones replace them.",
  };
  return (
    <Operation title={action === "resume" ? "Resume" : "Pause"} what={what[action]}>
      <span class="actions">
        <button type="button" disabled={isBusy || !["live", "paused"].includes(view.status)} onClick={() => turn("")}>
          {action === "resume" ? "Resume" : "Pause"}
        </button>
        {problem?.code === "view.has_children" && (
          <button type="button" disabled={isBusy} onClick={() => turn("?cascade=true")}>With all views that read it</button>
        )}
      </span>
      {problem && <ProblemNote problem={problem} />}
    </Operation>
  );
}

function Rebuild({ view, again }: TabProps) {
  return (
    <Operation title="Rebuild" what="Computes the view from a new snapshot. The current rows stay readable until the new ones replace them.">
      <RebuildButton title={titleOf(view)} again={again} />
    </Operation>
  );
}

function Rename({ name, view }: TabProps) {
  const rename = async (to: string): Promise<ViewFacts> => call("POST", `${viewPath(name)}/rename`, { name: to });
  const move = async (to: string): Promise<ViewFacts> => call("POST", `${viewPath(name)}/move`, { schema: to });
  return (
    <Operation title="Rename" what="Grants, indexes and comments are kept, and views that read it are adapted. As in SQL, double quotes preserve capitals.">
      <NameForm label="New name" now={sqlName(view.name)} action="Rename" run={rename} />
      {offers("POST /views/{}/move") && <NameForm label="New schema" now={sqlName(view.schema)} action="Move" run={move} />}
    </Operation>
  );
}

function NameForm({ label, now, action, run }: {
  label: string;
  now: string;
  action: string;
  run: (to: string) => Promise<ViewFacts>;
}) {
  const [to, setTo] = useState("");
  const work = useWork();
  const submit = (event: Event): void => {
    event.preventDefault();
    void work.run(async () => {
      const view = await run(to.trim());
      tell(`It is ${titleOf(view)} now`);
      go(viewHref(titleOf(view), "manage"));
    });
  };
  return (
    <>
      <form onSubmit={submit}>
        <input type="text" aria-label={label} placeholder={now} value={to} spellcheck={false} onInput={(event) => setTo(event.currentTarget.value)} />
        <button type="submit" disabled={work.isBusy || !to.trim()}>{action}</button>
      </form>
      {work.problem && <ProblemNote problem={work.problem} />}
    </>
  );
}

function Drop({ name, view }: TabProps) {
  const [isConfirming, setConfirming] = useState(false);
  const run = async (): Promise<void> => {
    await call("DELETE", viewPath(name));
    tell(`Dropped ${titleOf(view)}`);
    go("#/");
  };
  return (
    <Operation title="Drop" isDanger what="Deletes the view's table, rows and state. The source is not touched.">
      <button type="button" class="danger" onClick={() => setConfirming(true)}>Drop view</button>
      {isConfirming && (
        <Confirm title="Drop this view?" action="Drop it" name={view.name} run={run} onClose={() => setConfirming(false)}>
          <p>
            <strong><Text>{titleOf(view)}</Text></strong> and its {count(view.rows)} rows will be deleted.
            Queries that read the table will fail.
          </p>
        </Confirm>
      )}
    </Operation>
  );
}
