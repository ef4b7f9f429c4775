// Polling while a component is shown.
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, call, type Problem } from "./api";

export interface Polled<T> {
  value: T | null;
  problem: Problem | null;
  again: () => void;
}

/** GET `path`, and again every `everyMs` (0: once). null: nothing. */
export function usePolled<T>(
  path: string | null,
  everyMs = 0,
  parse?: (text: string) => unknown,
): Polled<T> {
  const [value, setValue] = useState<T | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [turn, setTurn] = useState(0);
  const shownPath = useRef<string | null>(null);
  useEffect(() => {
    if (path === null) return;
    if (shownPath.current?.split("?")[0] !== path.split("?")[0]) setValue(null);
    shownPath.current = path;
    const abort = new AbortController();
    let timer = 0;
    const poll = async (): Promise<void> => {
      if (!document.hidden || everyMs === 0) {
        try {
          const answer = await call<T>("GET", path, undefined, abort.signal, parse);
          if (abort.signal.aborted) return;
          setValue(answer);
          setProblem(null);
        } catch (error) {
          if (abort.signal.aborted) return;
          setProblem(asProblem(error));
        }
      }
      if (everyMs) timer = window.setTimeout(poll, everyMs);
    };
    void poll();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, everyMs, turn]);
  return { value, problem, again: () => setTurn((n) => n + 1) };
}

/** Work that a button starts: whether it is running, and how it ended. */
export function useWork(): {
  isBusy: boolean;
  problem: Problem | null;
  run: (work: () => Promise<void>) => Promise<void>;
  clear: () => void;
} {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const run = async (work: () => Promise<void>): Promise<void> => {
    setBusy(true);
    setProblem(null);
    try {
      await work();
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  return { isBusy, problem, run, clear: () => setProblem(null) };
}
