// Server-sent events over fetch, since EventSource can send no Authorization header, and a token
// must not be in a URL. Reconnects from the last id with a growing pause.
import { headersOf, Problem, problemOf } from "./api";

export interface ServerEvent {
  event: string;
  data: string;
  id: string;
}

export type Connection = "connecting" | "open" | "waiting" | "ended";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;

/** Subscribe to `path` until `abort`; a Problem that a retry cannot resolve (4xx) ends it. */
export async function subscribe(
  path: (resume: string) => string,
  received: (event: ServerEvent) => void,
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
        received(event);
      }
    } catch (error) {
      if (abort.aborted) return;
      if (error instanceof Problem && error.status >= 400 && error.status < 500 && ![408, 429].includes(error.status)) {
        // The resume token is too old: start again with the current rows.
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

/** Events of a stream as they arrive; unknown fields are ignored. */
export async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.pipeThrough(new TextDecoderStream() as never).getReader();
  let rest = "";
  let received: ServerEvent = { event: "message", data: "", id: "" };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value as unknown as string;
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line === "") {
          if (received.data || received.event !== "message") yield received;
          received = { event: "message", data: "", id: "" };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const field = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "data") received.data = received.data ? `${received.data}\n${text}` : text;
        else if (field === "event") received.event = text;
        else if (field === "id") received.id = text;
      }
    }
  } finally {
    reader.releaseLock();
  }
}
