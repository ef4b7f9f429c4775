// "Retry now" for an unreachable or stopped source.
import { call, mayOperate, offers } from "../lib/api";
import { refresh } from "../lib/live";
import { useWork } from "../lib/use";
import { Text } from "./basic";
import { tell } from "./toasts";

export function RetryButton({ name, again }: { name: string; again?: () => void }) {
  const { isBusy, problem, run } = useWork();
  if (!mayOperate() || !offers("POST /sources/{}/retry")) return null;
  const retry = (): void => {
    void run(async () => {
      await call("POST", `/sources/${encodeURIComponent(name)}/retry`);
      tell(`Trying ${name} now`);
      again?.();
      void refresh();
    });
  };
  return (
    <>
      <button type="button" class="small" disabled={isBusy} onClick={retry} aria-label={`Retry ${name} now`}>Retry now</button>
      {problem && <span class="bad"><Text>{problem.title}</Text></span>}
    </>
  );
}
