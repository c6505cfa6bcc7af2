/** The time by which calls and workers wait. It is one thing, so that tests can move it. */

import { setMaxListeners } from "node:events";

/** @internal */
export interface Clock {
  /** Milliseconds, that never go back. */
  now(): number;
  /** Calls later; the result takes the call back. A call that is `idle` does not keep the program alive. */
  after(ms: number, call: () => void, idle?: boolean): () => void;
}

/** More than a timer of Node takes at once: it would be called at once. */
const LONGEST = 2 ** 31 - 1;

/** @internal */
export const systemClock: Clock = {
  now: () => performance.now(),
  after(ms, call, idle = false) {
    const end = performance.now() + ms;
    let timer: NodeJS.Timeout;
    const wait = (): void => {
      const left = end - performance.now();
      timer = left > LONGEST ? setTimeout(wait, LONGEST) : setTimeout(call, Math.max(0, Math.ceil(left)));
      if (idle) timer.unref();
    };
    wait();
    return () => clearTimeout(timer);
  },
};

/** Waits; false when it was interrupted. @internal */
export function sleep(clock: Clock, ms: number, interrupt?: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    if (interrupt?.aborted) return resolve(false);
    const end = (whole: boolean): void => {
      cancel();
      interrupt?.removeEventListener("abort", stop);
      resolve(whole);
    };
    const stop = (): void => end(false);
    const cancel = clock.after(ms, () => end(true));
    interrupt?.addEventListener("abort", stop);
  });
}

/** A controller whose signal takes any number of listeners, without a warning: one for each call that it ends. @internal */
export function controller(): AbortController {
  const made = new AbortController();
  setMaxListeners(0, made.signal);
  return made;
}

/** How long to wait before the next repeat, in milliseconds; `n` is how many there were. @internal */
export function pauseAfter(n: number): number {
  const longest = Math.min(5000, 100 * 2 ** n);
  return longest / 2 + Math.random() * (longest / 2);
}

/** A duration up to a tenth shorter or longer. @internal */
export function spread(duration: number): number {
  return duration * (0.9 + 0.2 * Math.random());
}
