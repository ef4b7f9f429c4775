// The state of a form of options while it is filled in, sent and refused.
import { useState } from "preact/hooks";
import type { Problem } from "./api";
import { jsonOf, located, shownOf, stateOf, type GroupState, type Schema } from "./schema";

export interface OptionsState {
  state: GroupState;
  setState: (state: GroupState) => void;
  /** The options as JSON. Problem: a field is not JSON. */
  json: () => Record<string, unknown>;
  /** Fill the form in with options. */
  fill: (options: unknown) => void;
  /** Where in the form a problem is; null if it names no option that is shown. */
  placeOf: (problem: Problem | null) => { path: string; problem: Problem } | null;
}

export function useOptions(schema: Schema, options: unknown = undefined): OptionsState {
  const [state, setState] = useState<GroupState>(() => (stateOf(schema, options) ?? {}) as GroupState);
  return {
    state,
    setState,
    json: () => (jsonOf(schema, state) ?? {}) as Record<string, unknown>,
    fill: (given) => setState((stateOf(schema, given) ?? {}) as GroupState),
    placeOf: (problem) => {
      if (!problem?.option) return null;
      const path = located(shownOf(schema, state), problem.option.replace(/^options\./, ""));
      return path === null ? null : { path, problem };
    },
  };
}
