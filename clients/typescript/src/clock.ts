/** The clock of calls and workers, which tests can replace. */

import { setMaxListeners } from "node:events";

/** @internal */
export interface Clock {
  /** Milliseconds of a monotonic clock. */
  now(): number;
  /** Calls later, unless the returned function is called first. An `idle` call does not keep the program alive. */
  after(ms: number, call: () => void, idle?: boolean): () => void;
}

/** Longest delay of a timer in Node: a longer one would run at once. */
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

/** Waits. Returns false if it was interrupted. @internal */
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

/**
 * Returns a controller whose signal accepts any number of listeners without a warning: one for each call that it ends.
 * @internal
 */
export function controller(): AbortController {
  const made = new AbortController();
  setMaxListeners(0, made.signal);
  return made;
}

/** Returns the pause before the next retry in milliseconds; `n` is the number of earlier ones. @internal */
export function pauseAfter(n: number): number {
  const longest = Math.min(5000, 100 * 2 ** n);
  return longest / 2 + Math.random() * (longest / 2);
}

/** Varies a duration by up to a tenth. @internal */
export function spread(duration: number): number {
  return duration * (0.9 + 0.2 * Math.random());
}
