// CodeMirror with PostgreSQL's keywords, in a shadow root: there its styles are adopted sheets, so
// the page's policy need not allow inline styles.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { PostgreSQL, sql, type SQLNamespace } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration, type DecorationSet, drawSelection, EditorView, highlightActiveLine, keymap,
  lineNumbers, placeholder,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { offers, type Position } from "../lib/api";
import { sqlWord } from "../lib/names";
import { type Table } from "../lib/tables";
import { usePolled } from "../lib/use";

const setMark = StateEffect.define<{ from: number; to: number } | null>();
const wrong = Decoration.mark({ class: "cm-wrong", attributes: { "aria-invalid": "true" } });

const marks = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(found, change) {
    let next = found.map(change.changes);
    for (const effect of change.effects) {
      if (effect.is(setMark)) next = effect.value ? Decoration.set(wrong.range(effect.value.from, effect.value.to)) : Decoration.none;
    }
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

const editorTheme = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--field)", fontSize: "var(--size-code)", borderRadius: "inherit" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", minHeight: "15rem", maxHeight: "60vh" },
  ".cm-content": { padding: "12px 0", caretColor: "var(--ink)" },
  ".cm-line": { padding: "0 14px 0 8px" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--faint)", border: "none", paddingLeft: "6px" },
  ".cm-activeLine": { backgroundColor: "transparent" },
  ".cm-cursor": { borderLeftColor: "var(--ink)", borderLeftWidth: "1.5px" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "var(--selection)" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-soft) !important" },
  ".cm-placeholder": { color: "var(--faint)" },
  ".cm-wrong": { textDecoration: "underline wavy var(--bad) 1.5px", textUnderlineOffset: "3px", backgroundColor: "var(--bad-soft)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: "8px", overflow: "hidden" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--ink)" },
  ".cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)" },
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--sql-word)", fontWeight: "500" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--sql-text)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--sql-number)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--sql-number)" },
]);

/** The tables that this caller may read; the schema is omitted if it is not needed. */
export function useNames(): SQLNamespace {
  const { value: reported } = usePolled<{ tables: Table[] }>(offers("GET /tables") ? "/tables" : null);
  return useMemo(() => {
    const found: Record<string, SQLNamespace> = {};
    for (const table of reported?.tables ?? []) {
      const columns = table.columns.map((column) => ({ label: column, apply: sqlWord(column), type: "property" }));
      if (table.schema === "public") found[escaped(table.name)] = columns;
      found[`${escaped(table.schema)}.${escaped(table.name)}`] = columns;
    }
    return found;
  }, [reported]);
}

/** A dot inside a name does not separate names. */
const escaped = (name: string): string => name.replaceAll("\\", "\\\\").replaceAll(".", "\\.");

const languageOf = (names: SQLNamespace) => sql({ dialect: PostgreSQL, schema: names, upperCaseKeywords: true });

export interface CodeEditorProps {
  text: string;
  names: SQLNamespace;
  error: Position | null;
  onText: (text: string) => void;
  onSubmit: () => void;
}

export function CodeEditor({ text, names, error, onText, onSubmit }: CodeEditorProps) {
  const container = useRef<HTMLDivElement>(null);
  const editor = useRef<EditorView | null>(null);
  const language = useRef(new Compartment());
  const calls = useRef({ onText, onSubmit });
  calls.current = { onText, onSubmit };
  useEffect(() => {
    if (!container.current) return;
    const root = container.current.shadowRoot ?? container.current.attachShadow({ mode: "open" });
    editor.current = new EditorView({
      parent: root,
      root,
      state: EditorState.create({
        doc: text,
        extensions: [
          keymap.of([{ key: "Mod-Enter", run: () => (calls.current.onSubmit(), true) }]),
          lineNumbers(), history(), drawSelection(), indentOnInput(), bracketMatching(),
          closeBrackets(), autocompletion({ icons: false }), highlightActiveLine(),
          keymap.of([...closeBracketsKeymap, ...completionKeymap, ...defaultKeymap, ...historyKeymap]),
          language.current.of(languageOf(names)),
          syntaxHighlighting(colours), editorTheme, marks, EditorView.lineWrapping,
          placeholder("SELECT …"),
          EditorView.contentAttributes.of({ "aria-label": "Query" }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) calls.current.onText(update.state.doc.toString());
          }),
        ],
      }),
    });
    editor.current.focus();
    return () => editor.current?.destroy();
  }, []);
  useEffect(() => {
    editor.current?.dispatch({ effects: language.current.reconfigure(languageOf(names)) });
  }, [names]);
  useEffect(() => {
    const now = editor.current;
    now?.dispatch({ effects: setMark.of(error ? rangeOf(now.state, error) : null) });
  }, [error]);
  return <div class="code" ref={container} />;
}

const WORD = /^(?:'(?:[^']|'')*'?|(?:"(?:[^"]|"")*"?|[\p{L}\p{N}_$]+)(?:\.(?:"(?:[^"]|"")*"?|[\p{L}\p{N}_$]+))*|\S)/u;

/** The word at a position from PostgreSQL, which counts characters; at the end, the last word. */
export function rangeOf(state: EditorState, { line, column }: Position): { from: number; to: number } | null {
  if (!state.doc.length) return null;
  const found = state.doc.line(Math.min(Math.max(1, line), state.doc.lines));
  const skipped = [...found.text].slice(0, column - 1).join("").length;
  let from = Math.min(found.from + skipped, state.doc.length - 1);
  const rest = state.sliceDoc(from);
  const word = WORD.exec(rest)?.[0] ?? "";
  if (!word) {
    const before = state.sliceDoc(0, from).trimEnd().length;
    from = Math.max(0, before - 1);
  }
  return { from, to: Math.min(state.doc.length, from + Math.max(1, word.length)) };
}
