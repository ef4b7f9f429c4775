// The token screen. The token is stored for this tab only and never put into a URL.
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
          throw new Problem(401, error.code, "the token is not known", error.detail, error.hint);
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
        <p class="dim">This service requires a token. It is stored in this tab only, until you close the tab.</p>
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
