// Server-sent events over fetch, since EventSource can send no Authorization header, and a token
// has no place in an address. Reconnects from the last id with a growing pause.
import { headersOf, Problem, problemOf } from "./api";

export interface Told {
  event: string;
  data: string;
  id: string;
}

export type Connection = "connecting" | "open" | "waiting" | "ended";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;

/** Follows `path` until `abort`; a Problem that no retry heals (4xx) ends it. */
export async function follow(
  path: (resume: string) => string,
  told: (event: Told) => void,
  stands: (now: Connection) => void,
  abort: AbortSignal,
): Promise<void> {
  let resume = "";
  let pause = FIRST_PAUSE_MS;
  while (!abort.aborted) {
    stands("connecting");
    try {
      const answer = await fetch(path(resume), {
        headers: { ...headersOf(), Accept: "text/event-stream" },
        signal: abort,
        cache: "no-store",
      });
      if (!answer.ok || !answer.body) throw await problemOf(answer);
      stands("open");
      pause = FIRST_PAUSE_MS;
      for await (const event of eventsOf(answer.body)) {
        if (event.id) resume = event.id;
        told(event);
      }
    } catch (error) {
      if (abort.aborted) return;
      if (error instanceof Problem && error.status >= 400 && error.status < 500 && ![408, 429].includes(error.status)) {
        // A resume token that is too old: begin again with the rows as they are.
        if (!resume) {
          stands("ended");
          throw error;
        }
        resume = "";
      }
    }
    if (abort.aborted) return;
    stands("waiting");
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

/** Events of a stream as they come; fields that we do not know are passed over. */
export async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Told> {
  const reader = body.pipeThrough(new TextDecoderStream() as never).getReader();
  let rest = "";
  let told: Told = { event: "message", data: "", id: "" };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value as unknown as string;
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line === "") {
          if (told.data || told.event !== "message") yield told;
          told = { event: "message", data: "", id: "" };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const field = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "data") told.data = told.data ? `${told.data}\n${text}` : text;
        else if (field === "event") told.event = text;
        else if (field === "id") told.id = text;
      }
    }
  } finally {
    reader.releaseLock();
  }
}
