// The small components that every screen uses.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { asProblem, type Problem } from "../lib/api";
import { type ReportedError, unreachable } from "../lib/live";
import { tell } from "./toasts";

/** Untrusted text, isolated so that its direction does not affect the text around it. */
export function Text({ children, title }: { children: string; title?: string }) {
  return <bdi title={title}>{children}</bdi>;
}

const TONES: Record<string, string> = {
  live: "good", running: "good", ok: "good",
  failed: "bad", stopped: "bad", degraded: "bad",
  retrying: "warn", paused: "idle", dropping: "idle",
};

export function Status({ status }: { status: string }) {
  const tone = TONES[status] ?? "busy";
  return (
    <span class={`status ${tone}`}>
      <span class="dot" aria-hidden="true" />
      {status}
    </span>
  );
}

export function Figure({ label, children, note }: {
  label: string;
  children: ComponentChildren;
  note?: ComponentChildren;
}) {
  return (
    <div class="figure">
      <dt>{label}</dt>
      <dd>
        {children}
        {note !== undefined && <small>{note}</small>}
      </dd>
    </div>
  );
}

const PATIENCE_MS = 4000;

/** Bars while the service is asked; a sentence instead when there is no answer. */
export function Skeleton({ rows = 3, wide = false }: { rows?: number; wide?: boolean }) {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, []);
  const gone = unreachable.value;
  if (gone || isLate) {
    return (
      <p class="nothing" role="status">
        {!gone ? "No answer yet. This is here as soon as the service has one."
          : gone.status === 0 ? "The service does not answer. This is here as soon as it does."
          : <>Nothing can be shown: <Text>{gone.title}</Text>. {gone.hint && <Text>{gone.hint}</Text>}</>}
      </p>
    );
  }
  return (
    <div class={wide ? "skeleton wide" : "skeleton"} role="status" aria-label="loading">
      {Array.from({ length: rows }, (_, i) => <span key={i} />)}
    </div>
  );
}

export function ProblemNote({ problem, what }: { problem: Problem | ReportedError; what?: string }) {
  return (
    <div class="problem" role="alert">
      <p>
        <strong><Text>{problem.title}</Text></strong>
        {problem.position && (
          <span class="place">line {problem.position.line}, column {problem.position.column}</span>
        )}
      </p>
      {problem.detail && <p class="pre"><Text>{problem.detail}</Text></p>}
      {problem.hint && <p class="hint"><span>Hint</span> <Text>{problem.hint}</Text></p>}
      <p class="code">{what ? `${what} · ` : ""}{problem.code}</p>
    </div>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    try {
      await copied(text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch (error) {
      tell(asProblem(error).title, "bad");
    }
  };
  return (
    <button type="button" class="quiet small" onClick={copy}>
      {isDone ? "Copied" : label}
    </button>
  );
}

/** The clipboard, also on pages without a secure context. */
async function copied(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  if (!isDone) throw new Error("the browser does not let this page copy");
}

export function Snippet({ text, label }: { text: string; label: string }) {
  return (
    <figure class="snippet">
      <figcaption>
        {label}
        <Copy text={text} />
      </figcaption>
      <pre tabIndex={0}><code>{text}</code></pre>
    </figure>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** A bar from 0 to 1; without a number, progress is unknown. */
export function Bar({ share, label }: { share: number | null; label: string }) {
  const style = share === null ? {} : { width: `${Math.round(share * 1000) / 10}%` };
  return (
    <div
      class={share === null ? "bar unknown" : "bar"}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={share === null ? undefined : Math.round(share * 100)}
    >
      <span style={style} />
    </div>
  );
}
