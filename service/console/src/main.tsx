// The entry point: styles, the frame around the screens, global keyboard shortcuts.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { learnRoutes, mayAdminister, mayOperate, needsToken, offers, token } from "./lib/api";
import { useKeys } from "./lib/keys";
import { refresh, overview, start, unreachable } from "./lib/live";
import { address, go } from "./lib/router";
import { apply, theme, turnTheme } from "./lib/theme";
import { later } from "./parts/later";
import { Toasts } from "./parts/toasts";
import { HelpDialog } from "./screens/help";
import { HealthScreen } from "./screens/health";
import { ListScreen } from "./screens/list";
import { SourceScreen } from "./screens/source";
import { TokenScreen } from "./screens/token";
import { ViewScreen } from "./screens/view";
import "./style/tokens.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/screens.css";

const NewSourceScreen = later(() => import("./screens/source_form").then((m) => m.NewSourceScreen));
const ChangeSourceScreen = later(() => import("./screens/source_form").then((m) => m.ChangeSourceScreen));
const EditorScreen = later(() => import("./screens/editor").then((m) => m.EditorScreen));
const TablesScreen = later(() => import("./screens/tables").then((m) => m.TablesScreen));
const QueryScreen = later(() => import("./screens/query").then((m) => m.QueryScreen));
const TokensScreen = later(() => import("./screens/tokens").then((m) => m.TokensScreen));

const THEME_SIGNS: Record<string, string> = { system: "◐", light: "○", dark: "●" };

function Screen() {
  const { screen, name, tab, query } = address.value;
  if (screen === "view") return <ViewScreen key={name} name={name} />;
  if (screen === "new-source") return <NewSourceScreen />;
  if (screen === "source" && tab === "change") return <ChangeSourceScreen key={name} name={name} />;
  if (screen === "source") return <SourceScreen key={name} name={name} />;
  if (screen === "health") return <HealthScreen />;
  if (screen === "tables") return <TablesScreen schema={name} name={tab} />;
  if (screen === "query") return <QueryScreen key={query.toString()} />;
  if (screen === "tokens") return <TokensScreen />;
  if (screen === "new") return <EditorScreen key={query.toString()} replaces={query.get("replace") ?? ""} />;
  return <ListScreen />;
}

function App() {
  const [isHelp, setHelp] = useState(false);
  const { screen } = address.value;
  useKeys({
    "?": () => setHelp(true),
    t: turnTheme,
    n: () => mayOperate() && go("#/new"),
    "g v": () => go("#/"),
    "g t": () => go("#/tables"),
    "g q": () => go("#/query"),
    "g h": () => go("#/health"),
  });
  useEffect(() => {
    document.title = titleOf();
  });
  if (needsToken.value) return <TokenScreen />;
  const health = overview.value?.status;
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>Skip to the content</a>
      <header class="bar-top">
        <a class="brand" href="#/" aria-label="Tidemark, all views">
          <Mark />
          <span>Tidemark</span>
        </a>
        <nav aria-label="Screens">
          <NavLink href="#/" isHere={["list", "view", "new", "source", "new-source", "unknown"].includes(screen)}>Views</NavLink>
          {offers("GET /tables") && <NavLink href="#/tables" isHere={screen === "tables"}>Tables</NavLink>}
          {offers("POST /query") && <NavLink href="#/query" isHere={screen === "query"}>Query</NavLink>}
          <NavLink href="#/health" isHere={screen === "health"}>
            Health
            {health === "degraded" && <span class="alarm" role="img" aria-label="degraded" />}
          </NavLink>
          {mayAdminister() && <NavLink href="#/tokens" isHere={screen === "tokens"}>Tokens</NavLink>}
        </nav>
        <div class="tools">
          {mayOperate() && <a class="button primary small" href="#/new">New view</a>}
          <button type="button" class="quiet small icon" onClick={turnTheme} title="Theme (t)" aria-label={`Theme: ${theme.value}`}>
            {THEME_SIGNS[theme.value]}
          </button>
          <button type="button" class="quiet small icon" onClick={() => setHelp(true)} title="Keys (?)" aria-label="Help">
            ?
          </button>
        </div>
      </header>
      {unreachable.value && (
        <p class="banner" role="status">
          {unreachable.value.status === 0 ? "The service does not answer; trying again every second." : unreachable.value.title}
        </p>
      )}
      <main id="content" tabIndex={-1}><Screen /></main>
      {isHelp && <HelpDialog onClose={() => setHelp(false)} />}
      <Toasts />
    </>
  );
}

function NavLink({ href, isHere, children }: { href: string; isHere: boolean; children: preact.ComponentChildren }) {
  return <a href={href} aria-current={isHere ? "page" : undefined}>{children}</a>;
}

function Mark() {
  return (
    <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">
      <path d="M3 8c2.25 0 2.25-2 4.5-2S9.75 8 12 8s2.25-2 4.5-2S18.75 8 21 8M3 13c2.25 0 2.25-2 4.5-2s2.25 2 4.5 2 2.25-2 4.5-2 2.25 2 4.5 2M3 18c2.25 0 2.25-2 4.5-2s2.25 2 4.5 2" />
    </svg>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function titleOf(): string {
  const { screen, name, tab } = address.value;
  const part = {
    view: name, source: name, new: "New view", "new-source": "New source", tables: tab || "Tables", query: "Query",
    health: "Health", tokens: "Tokens", list: "", unknown: "",
  }[screen];
  return part ? `${part} · Tidemark` : "Tidemark";
}

apply();
token.subscribe(() => void learnRoutes().then(refresh));
start();
const root = document.getElementById("app");
if (root) render(<App />, root);
