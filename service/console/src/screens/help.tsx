// The keyboard shortcuts, and a link to the REST reference.
import { Dialog } from "../parts/dialog";

const KEYS: [string, string][] = [
  ["j  k", "next and previous row"],
  ["Enter", "open the row"],
  ["/", "search"],
  ["n", "new view"],
  ["g v", "all views"],
  ["g t", "tables"],
  ["g q", "query"],
  ["g h", "health"],
  ["[  ]", "previous and next part of a view"],
  ["p", "pause the stream of changes"],
  ["Ctrl Enter", "in the editor: create the view, or run the query"],
  ["t", "light, dark, as the system"],
  ["?", "this help"],
  ["Esc", "close, or leave the search"],
];

export function HelpDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {KEYS.map(([key, what]) => (
          <div key={key}>
            <dt>{key.split(/\s+/).map((k) => <kbd key={k}>{k}</kbd>)}</dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p class="dim">
        Everything in this console is also available from psql, REST and Python. <a href="/docs">REST reference</a>
      </p>
    </Dialog>
  );
}
