// Light, dark, or the system's theme. The only setting that is stored across sessions.
import { signal } from "@preact/signals";

const STORAGE_KEY = "tidemark.theme";
const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

function storedTheme(): Theme {
  const found = localStorage.getItem(STORAGE_KEY) as Theme | null;
  return found && THEMES.includes(found) ? found : "system";
}

export const theme = signal<Theme>(storedTheme());

export function setTheme(next: Theme): void {
  theme.value = next;
  localStorage.setItem(STORAGE_KEY, next);
  apply();
}

export function turnTheme(): void {
  setTheme(THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system");
}

export function apply(): void {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}
