/** The trace that publishes within a handler continue. */

import { AsyncLocalStorage } from "node:async_hooks";

const traces = new AsyncLocalStorage<string | undefined>();

/** Calls `f`; publishes within it have this `traceparent`, or none, unless they set another. */
export function withTraceparent<T>(traceparent: string | undefined, f: () => T): T {
  return traces.run(traceparent, f);
}

/** @internal */
export function currentTraceparent(): string | undefined {
  return traces.getStore();
}
