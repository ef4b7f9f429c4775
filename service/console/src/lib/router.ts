// The address after "#": #/, #/views/NAME/TAB, #/new, #/tables/SCHEMA/NAME, #/query,
// #/sources/NAME/TAB, #/new-source, #/health, #/tokens.
import { signal } from "@preact/signals";

export interface Address {
  screen: "list" | "view" | "new" | "tables" | "query" | "source" | "new-source" | "health" | "tokens" | "unknown";
  name: string;
  tab: string;
  query: URLSearchParams;
}

function read(): Address {
  const [path = "", query = ""] = location.hash.replace(/^#/, "").split("?", 2);
  const [first = "", name = "", tab = ""] = path.split("/").slice(1).map(decoded);
  const screens: Record<string, Address["screen"]> = {
    "": "list", views: "view", new: "new", tables: "tables", query: "query", sources: "source",
    "new-source": "new-source", health: "health", tokens: "tokens",
  };
  const screen = screens[first] ?? "unknown";
  return { screen: screen === "view" && !name ? "list" : screen, name, tab, query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const address = signal(read());

addEventListener("hashchange", () => {
  const before = address.value;
  address.value = read();
  if (before.screen !== address.value.screen || before.name !== address.value.name || (before.screen === "tables" && before.tab !== address.value.tab)) scrollTo(0, 0);
});

export function viewHref(name: string, tab = ""): string {
  return `#/views/${encodeURIComponent(name)}${tab ? `/${tab}` : ""}`;
}

export function go(href: string): void {
  location.hash = href.replace(/^#/, "");
}
