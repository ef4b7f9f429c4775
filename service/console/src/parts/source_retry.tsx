// "Retry now" for a source that is away or stopped.
import { call, mayOperate, offers } from "../lib/api";
import { look } from "../lib/live";
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
      void look();
    });
  };
  return (
    <>
      <button type="button" class="small" disabled={isBusy} onClick={retry} aria-label={`Retry ${name} now`}>Retry now</button>
      {problem && <span class="bad"><Text>{problem.title}</Text></span>}
    </>
  );
}
