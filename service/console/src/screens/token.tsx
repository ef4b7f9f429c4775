// The service wants a token. It is kept for this tab alone and never put into an address.
import { useState } from "preact/hooks";
import { call, keepToken, needsToken, Problem, token } from "../lib/api";
import { type Overview, take } from "../lib/live";
import { useWork } from "../lib/use";
import { ProblemNote } from "../parts/basic";

export function TokenScreen() {
  const [value, setValue] = useState("");
  const { isBusy, problem, run } = useWork();
  const enter = (event: Event): void => {
    event.preventDefault();
    void run(async () => {
      const before = token.value;
      token.value = value.trim();
      try {
        take(await call<Overview>("GET", "/overview?history=true"));
      } catch (error) {
        token.value = before;
        needsToken.value = true;
        if (error instanceof Problem && error.status === 401) {
          throw new Problem(401, error.code, "this token is not known", error.detail, error.hint);
        }
        throw error;
      }
      keepToken(value.trim());
    });
  };
  return (
    <main class="token" id="content">
      <form onSubmit={enter}>
        <h1>Tidemark</h1>
        <p class="dim">This service asks for a token. It stays in this tab and is gone when the tab is closed.</p>
        <label>
          Token
          <input
            type="password"
            autoComplete="off"
            autoFocus
            required
            value={value}
            onInput={(event) => setValue(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="primary" disabled={isBusy || !value.trim()}>Enter</button>
        {problem && <ProblemNote problem={problem} />}
      </form>
    </main>
  );
}
