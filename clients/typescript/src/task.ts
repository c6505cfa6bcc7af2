/** One job of a worker: its handler, its touches, and its result. */

import { controller, spread } from "./clock.js";
import { CancelledError, DormouseError, isError, PanicError, Permanent, RetryAfter, Snooze } from "./errors.js";
import { type HeldJob, type Hold, holdOf, type Keeper, type Outcome } from "./job.js";
import { pauseInTime, type Run } from "./run.js";
import { withTraceparent } from "./trace.js";
import type { Handler } from "./worker.js";

/** The result to send for a job. @internal */
export interface Result {
  outcome: Outcome;
  keepTry?: boolean;
  /** Seconds until it is ready again; `backoff`: by the worker's back-off. */
  after?: number | "backoff";
  /** Why it has failed: sent as the reason, with the attempt. */
  error?: Error;
}

/** Returns a job to its queue at once, with its try. @internal */
export const RETURNED: Result = { outcome: "returned", keepTry: true };

/** Returns the result of a call, or its error. @internal */
export async function tried<T>(call: Promise<T>): Promise<{ value?: T; failed?: DormouseError | undefined }> {
  try {
    return { value: await call };
  } catch (error) {
    if (error instanceof DormouseError) return { failed: error };
    throw error;
  }
}

/** How often an overdue handler is logged. */
const MINUTE = 60_000;

/** @internal */
export class Task implements Keeper {
  readonly hold: Hold;
  readonly began: number;
  readonly #end = controller();
  #why: CancelledError["why"] | undefined;
  #begun = false;
  /** Touches have ended. */
  #over = false;
  #returned = false;
  /** The result was decided before the handler returned. */
  #abandoned = false;
  #lost = false;
  /** Failed touches since the last success. */
  #failures = 0;
  #took = 0;
  #error: unknown;
  #endTurn: () => void = () => undefined;
  #cancelTouch = (): void => undefined;
  #cancelLease = (): void => undefined;
  #cancelLimit = (): void => undefined;

  constructor(readonly run: Run, readonly job: HeldJob) {
    this.hold = holdOf(job);
    this.began = run.clock.now();
  }

  /** In seconds. */
  get ttr(): number {
    return this.run.settings.ttr / 1000;
  }

  begin(handler: Handler): void {
    const { clock, settings } = this.run;
    this.#begun = true;
    this.hold.keeper = this;
    this.touched(this.ttr);
    if (settings.timeLimit !== undefined) {
      this.#cancelLimit = clock.after(settings.timeLimit, () => this.#limitOver());
    }
    this.run.tell("start", this.job);
    void this.#work(handler);
  }

  async #work(handler: Handler): Promise<void> {
    let error: Error | undefined;
    try {
      await withTraceparent(this.job.traceparent, () => handler(this.job, { signal: this.#end.signal }));
    } catch (thrown) {
      error = isError(thrown) ? thrown : new PanicError(thrown);
    }
    this.#ended(error);
  }

  #ended(error: Error | undefined): void {
    const { clock, settings } = this.run;
    if (error instanceof PanicError) {
      const { id, queue } = this.job;
      settings.logger.error("a handler threw what is no Error", { queue, job: id, panic: error.message, stack: error.stack });
    }
    this.#returned = true;
    this.#over = true;
    this.#cancelTouch();
    this.#cancelLease();
    this.#cancelLimit();
    if (!this.#abandoned) {
      this.#took = clock.now() - this.began;
      this.#error = error;
    }
    if (this.#lost) this.#finished("lost");
    this.run.leave(this);
    if (!this.#lost && !this.#abandoned) void this.settle(this.#resultOf(error));
  }

  /** Aborts the handler's signal, unless it is aborted. */
  cancel(why: CancelledError["why"]): void {
    if (this.#why !== undefined || this.#returned) return;
    this.#why = why;
    this.#end.abort(new CancelledError(why));
  }

  /** Gives the job up: another worker has it, or will have it. */
  lose(): void {
    if (this.#over) return;
    this.#lost = true;
    this.#over = true;
    this.#cancelTouch();
    this.#cancelLease();
    this.hold.outcome = "lost";
    this.run.logLost(this.job);
    this.cancel("lost");
    this.run.settled();
  }

  /** Called when the delivery ends by the local clock, unless a touch has extended it meanwhile. */
  #leaseOver(): void {
    const { left, outcome } = this.hold;
    if (left <= 0) {
      if (outcome === undefined) this.lose();
    } else if (!this.#over) {
      this.#cancelLease = this.run.clock.after(left, () => this.#leaseOver());
    }
  }

  /** Schedules the next touch for a third of `ttr` seconds from now, and the end of the delivery. */
  touched(ttr: number): void {
    this.#plan(spread((ttr * 1000) / 3));
    if (this.#over) return;
    this.#cancelLease();
    this.#cancelLease = this.run.clock.after(this.hold.left, () => this.#leaseOver());
  }

  #plan(ms: number): void {
    if (this.#over) return;
    this.#cancelTouch();
    this.#cancelTouch = this.run.clock.after(ms, () => void this.#touch());
  }

  /** Extends the delivery by another `ttr`, independent of the handler's signal. */
  async #touch(): Promise<void> {
    const endTurn = await this.hold.takeTurn();
    const endFlight = await this.run.flights.take();
    try {
      await this.#touchNow();
    } finally {
      endFlight();
      endTurn();
    }
  }

  async #touchNow(): Promise<void> {
    const { hold, run } = this;
    while (!this.#over && hold.outcome === undefined) {
      if (hold.left <= 0) return; // #leaseOver does the rest
      const timeout = Math.min(run.settings.ttr / 3, 10_000, hold.left);
      let { failed } = await tried(hold.touch(this.ttr, { timeout, retryFor: 0 }));
      run.tell("touch", this.job, failed);
      if (!failed) {
        this.#failures = 0;
        this.touched(this.ttr);
        return;
      }
      if (failed.type === "lost" || failed.type === "not_found") {
        let ours: boolean | undefined = false;
        if (failed.type === "lost" && hold.touchLost) {
          const bounds = { timeout: Math.min(timeout, Math.max(hold.left, 1)), retryFor: 0 };
          ({ value: ours, failed } = await tried(hold.findReceipt(bounds)));
        } else {
          failed = undefined;
        }
        if (ours) continue;
        if (!failed) return this.lose();
      }
      const pause = pauseInTime(hold, this.#failures++, failed);
      if (pause !== undefined) this.#plan(pause);
      return;
    }
  }

  /** Called at the end of the handler's time limit. */
  #limitOver(): void {
    this.cancel("time_limit");
    if (this.#returned || this.#why !== "time_limit") return;
    this.#cancelLimit = this.run.clock.after(this.run.settings.grace, () => {
      this.abandon(this.#resultOf(new CancelledError("time_limit")));
      this.#stillWorks();
    });
  }

  #stillWorks(): void {
    if (this.#returned) return;
    this.run.settings.logger.warn("a handler has not returned after its time limit; its slot is not free", {
      queue: this.job.queue, job: this.job.id, seconds: (this.run.clock.now() - this.began) / 1000,
    });
    this.#cancelLimit = this.run.clock.after(MINUTE, () => this.#stillWorks(), true);
  }

  /** Sends a result before the handler has returned. Returns false if it has returned. */
  abandon(result: Result): boolean {
    if (!this.#returned && !this.#abandoned && !this.#lost) {
      this.#abandoned = true;
      this.#over = true;
      this.#took = this.run.clock.now() - this.began;
      this.#cancelTouch();
      this.#cancelLease();
      void this.settle(result);
    }
    return !this.#returned;
  }

  #resultOf(error: Error | undefined): Result {
    if (error === undefined) return { outcome: "acked" };
    if (this.#why === "drain") return RETURNED;
    if (this.#why === "time_limit") return { outcome: "released", after: "backoff", error: new CancelledError("time_limit") };
    if (error instanceof Snooze) return { outcome: "snoozed", keepTry: true, after: error.seconds };
    if (error instanceof Permanent) return { outcome: "buried", error };
    if (error instanceof RetryAfter) return { outcome: "released", after: error.seconds, error };
    return { outcome: "released", after: "backoff", error };
  }

  /** Sends the result until the server has accepted it, or the job is lost. */
  async settle(result: Result): Promise<void> {
    const { hold, run } = this;
    this.#endTurn = await hold.takeTurn();
    if (result.outcome === "acked" && hold.outcome === undefined) return run.acks.add(this); // which calls settled
    let { outcome } = hold;
    for (let n = 0; outcome === undefined; n++) {
      const endFlight = await run.flights.take();
      const { left } = hold;
      const bounds = { timeout: Math.min(run.caller.timeout, left), retryFor: 0 };
      let { failed } = left > 0 ? await tried(this.#give(result, bounds)) : {};
      endFlight();
      if (left <= 0) {
        outcome = "lost";
      } else if (!failed) {
        outcome = result.outcome;
      } else {
        let ours: boolean | undefined = false;
        const gone = failed.type === "lost" || failed.type === "not_found";
        if (failed.type === "lost" && hold.touchLost) ({ value: ours, failed } = await tried(hold.findReceipt(bounds)));
        else if (gone) failed = undefined;
        if (ours) continue;
        if (gone && !failed && hold.givenLost) outcome = result.outcome; // it was done, and the answer was lost
        else if (!failed || !(await run.waitInTime(hold, n, failed))) outcome = "lost";
      }
    }
    this.settled(outcome);
  }

  async #give(result: Result, bounds: { timeout: number; retryFor: number }): Promise<void> {
    const { error, outcome, keepTry = false } = result;
    const attempt = error ? await this.hold.attempt(bounds) : 0;
    const reason = error ? `attempt ${attempt}: ${error.message || error.name}` : "";
    if (outcome === "buried") return this.hold.bury(reason, bounds);
    const after = result.after === "backoff" ? this.run.backoff(attempt, error as Error) : result.after;
    await this.hold.release({ delay: after !== undefined && after > 0 ? after : 0, reason, keepTry }, bounds);
  }

  /** Ends the turn that settle has taken. */
  settled(outcome: Outcome): void {
    if (outcome === "lost" && this.hold.outcome === undefined) this.run.logLost(this.job);
    this.hold.outcome = outcome;
    this.#endTurn();
    this.#finished(outcome);
    this.run.settled();
  }

  #finished(outcome: Outcome): void {
    if (!this.#begun) return; // a job that was given back
    const elapsed = this.job.elapsed + (this.run.clock.now() - this.began) / 1000;
    this.run.tell("finish", this.job, { outcome, seconds: this.#took / 1000, elapsed, error: this.#error });
  }
}
