// Rows of a view in a table. All values are text; long ones open in a dialog.
import { useState } from "preact/hooks";
import { SHORT, shortened, shown } from "../lib/format";
import { Copy } from "./basic";
import { Dialog } from "./dialog";

export interface Column {
  name: string;
  type: string;
}

const NUMBERS = /^(smallint|integer|bigint|numeric|real|double precision|int\d|float\d|money)/;

export const isNumber = (column: Column): boolean => NUMBERS.test(column.type);

export function Value({ value, column, onOpen }: {
  value: unknown;
  column: Column;
  onOpen: (text: string, title: string) => void;
}) {
  if (value === null || value === undefined) return <span class="null">null</span>;
  const text = shown(value);
  if (text === "") return <span class="null" title="an empty text">empty</span>;
  if (text.length <= SHORT) return <bdi>{text}</bdi>;
  return (
    <button type="button" class="long" title="show all of it" onClick={() => onOpen(text, column.name)}>
      <bdi>{shortened(text)}</bdi>
    </button>
  );
}

/** The dialog of a long value, and the function that opens it. */
export function useOpened() {
  const [opened, setOpened] = useState<{ text: string; title: string } | null>(null);
  const dialog = opened && (
    <Dialog title={opened.title} isWide onClose={() => setOpened(null)}>
      <pre class="value" tabIndex={0}><bdi>{opened.text}</bdi></pre>
      <footer><Copy text={opened.text} /></footer>
    </Dialog>
  );
  return { dialog, open: (text: string, title: string) => setOpened({ text, title }) };
}
