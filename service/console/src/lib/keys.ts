// Keyboard shortcuts outside of fields. A screen adds its own while it is shown; the newest wins.
import { useLayoutEffect } from "preact/hooks";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

const layers: Keys[] = [];
let before = "";
let beforeAt = 0;

function isTyping(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0];
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event) || document.querySelector("dialog[open]")) return;
  const pair = performance.now() - beforeAt < 900 ? `${before} ${event.key}` : "";
  before = event.key;
  beforeAt = performance.now();
  for (const name of [pair, event.key]) {
    const run = name && layers.findLast((keys) => name in keys)?.[name];
    if (run) {
      event.preventDefault();
      before = "";
      run(event);
      return;
    }
  }
});

/** Shortcuts of a mounted component; a sequence of two keys is written "g h". */
export function useKeys(keys: Keys): void {
  useLayoutEffect(() => {
    layers.push(keys);
    return () => void layers.splice(layers.indexOf(keys), 1);
  });
}

/** j and k over everything that matches: moves the focus, so that Enter works as usual. */
export function moveFocus(selector: string, step: number): void {
  const all = [...document.querySelectorAll<HTMLElement>(selector)];
  if (!all.length) return;
  const at = all.indexOf(document.activeElement as HTMLElement);
  const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step));
  all[next]?.focus();
  all[next]?.scrollIntoView({ block: "nearest" });
}
