// A button that rebuilds a failed view, after a confirmation: all its tables are read again.
import { useState } from "preact/hooks";
import { call, mayOperate, offers, viewPath } from "../lib/api";
import { refresh } from "../lib/live";
import { Confirm } from "./confirm";
import { tell } from "./toasts";

export function RebuildButton({ title, again, isSmall = false }: { title: string; again?: () => void; isSmall?: boolean }) {
  const [isConfirming, setConfirming] = useState(false);
  if (!mayOperate() || !offers("POST /views/{}/rebuild")) return null;
  const run = async (): Promise<void> => {
    await call("POST", `${viewPath(title)}/rebuild`);
    tell("The view is being rebuilt");
    again?.();
    void refresh();
  };
  return (
    <>
      <button type="button" class={isSmall ? "small" : ""} onClick={() => setConfirming(true)} aria-label={isSmall ? `Rebuild ${title}` : undefined}>Rebuild</button>
      {isConfirming && (
        <Confirm title={`Rebuild ${title}?`} action="Rebuild" isDanger={false} run={run} onClose={() => setConfirming(false)}>
          <p>This reads all tables of the view again.</p>
        </Confirm>
      )}
    </>
  );
}
