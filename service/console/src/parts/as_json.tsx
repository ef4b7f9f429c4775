// What a form would send, to copy into a program.
import { Snippet } from "./basic";

export function AsJson({ body }: { body: () => unknown }) {
  return (
    <details class="rare">
      <summary>As JSON</summary>
      <Snippet label="Body of the request" text={shown(body)} />
    </details>
  );
}

function shown(body: () => unknown): string {
  try {
    return JSON.stringify(body(), null, 2);
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
