// The name of what a form creates, with the service's error beside it.
import type { Problem } from "../lib/api";
import { Text } from "./basic";

/** Whether a problem is about the name. */
export function isOfName(problem: Problem | null): boolean {
  return problem !== null && (problem.option === "name" || /\.(name_taken|exists)$/.test(problem.code));
}

export function NameField({ what, about, value, problem, onName }: {
  what: string;
  about: string;
  value: string;
  problem: Problem | null;
  onName: (name: string) => void;
}) {
  const wrong = isOfName(problem) ? problem : null;
  return (
    <div class="option">
      <label for="new-name">
        {what}
        <span class="required" aria-hidden="true">required</span>
      </label>
      <input
        type="text"
        id="new-name"
        value={value}
        spellcheck={false}
        autoComplete="off"
        aria-required
        aria-invalid={wrong !== null}
        aria-describedby={wrong ? "new-name-about new-name-error" : "new-name-about"}
        onInput={(event) => onName(event.currentTarget.value)}
      />
      <p class="about" id="new-name-about">{about}</p>
      {wrong && (
        <p class="why" id="new-name-error" role="alert">
          <strong><Text>{wrong.title}</Text></strong>
          {wrong.detail && <Text>{wrong.detail}</Text>}
          {wrong.hint && <span>Hint: <Text>{wrong.hint}</Text></span>}
          <code>{wrong.code}</code>
        </p>
      )}
    </div>
  );
}
