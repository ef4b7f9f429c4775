// A part of the console that is loaded when it is first shown.
import type { ComponentType } from "preact";
import { lazy, Suspense } from "preact/compat";
import { Empty, Skeleton } from "./basic";

export function later<P extends object>(load: () => Promise<ComponentType<P>>, rows = 8): ComponentType<P> {
  const Loaded = lazy(async () => {
    try {
      return { default: await load() };
    } catch {
      return { default: Unloaded as ComponentType<P> };
    }
  });
  return (props: P) => <Suspense fallback={<Skeleton rows={rows} wide />}><Loaded {...props} /></Suspense>;
}

function Unloaded() {
  return (
    <Empty title="This part of the console could not be loaded">
      <p>The service did not answer, or it was upgraded since this page was opened.</p>
      <p><button type="button" onClick={() => location.reload()}>Reload the page</button></p>
    </Empty>
  );
}
