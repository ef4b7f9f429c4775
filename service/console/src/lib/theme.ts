// Light, dark, or what the system says. Kept over sessions; nothing else is.
import { signal } from "@preact/signals";

const KEPT = "tidemark.theme";
const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

function kept(): Theme {
  const found = localStorage.getItem(KEPT) as Theme | null;
  return found && THEMES.includes(found) ? found : "system";
}

export const theme = signal<Theme>(kept());

export function setTheme(next: Theme): void {
  theme.value = next;
  localStorage.setItem(KEPT, next);
  apply();
}

export function turnTheme(): void {
  setTheme(THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system");
}

export function apply(): void {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}
