/** A worker from its start to its end: its polls, its slots, its stop. task.ts handles a single job. */

import { Acks } from "./acks.js";
import type { Ask, Caller } from "./call.js";
import { consume } from "./client.js";
import { type Clock, controller, pauseAfter, sleep, spread } from "./clock.js";
import { DormouseError, type ErrorType, UncleanError } from "./errors.js";
import { type HeldJob, type Hold, holdOf } from "./job.js";
import { RETURNED, Task } from "./task.js";
import type { Handler, Hooks, Logger } from "./worker.js";

/** Options of a worker, in milliseconds. @internal */
export interface Settings {
  concurrency: number;
  ttr: number;
  poll: number;
  backoff: (attempt: number, error: Error) => number;
  timeLimit: number | undefined;
  drain: number;
  grace: number;
  ackWindow: number;
  hooks: Hooks;
  logger: Logger;
}

/** Maximum touches, releases and buries of a worker in flight. A thousand connections at once would be slower. */
const FLIGHTS = 32;

/** How long the end of a poll waits for the server's reply, and for the rest of a reply that has begun. */
const LAST_WORD = 500;
const REST = 5000;

/** Seconds until a retry if the program's own back-off function has failed. */
const AFTER_BAD_BACKOFF = 5;

/** Permanent errors of a poll. */
const FATAL: ReadonlySet<ErrorType> = new Set(["invalid", "unauthorized", "forbidden", "not_found", "unsupported"]);

/** @internal */
export class Run {
  readonly acks = new Acks(this);
  readonly flights = new Flights(FLIGHTS);
  readonly clock: Clock;
  readonly #stop = controller();
  readonly #hurry = controller();
  readonly #tasks = new Set<Task>();
  readonly #looks = new Set<() => void>();
  #free: number;
  /** Number of jobs whose results are not sent yet. */
  #unsettled = 0;
  /** Since when polls fail. */
  #away: number | undefined;

  constructor(
    readonly caller: Caller,
    readonly settings: Settings,
    readonly handlers: ReadonlyMap<string, Handler>,
    readonly ask: Ask,
    readonly untilIdle: boolean,
  ) {
    this.clock = caller.clock;
    this.#free = settings.concurrency;
  }

  /** Aborted when polls should end. */
  get stopping(): AbortSignal {
    return this.#stop.signal;
  }

  /** The second call ends the wait for handlers. */
  stop(): void {
    if (this.stopping.aborted) this.#hurry.abort();
    this.#stop.abort();
  }

  async work(): Promise<void> {
    const unwatch = this.#watchLoop();
    const ended = await this.#pollUntilStopped().then(
      () => undefined,
      (error: unknown) => ({ error }),
    );
    this.#stop.abort();
    const left = await this.#end();
    unwatch();
    if (left > 0) this.settings.logger.warn("handlers had not returned when the worker ended", { handlers: left });
    if (ended) throw ended.error;
    if (left > 0) throw new UncleanError(left);
  }

  /** Polls for as many jobs as there are free slots, whenever there is one. */
  async #pollUntilStopped(): Promise<void> {
    const { settings } = this;
    for (let failures = 0; ; ) {
      await this.#wait(() => this.#free > 0, this.stopping);
      if (this.stopping.aborted) return;
      const idle = this.#tasks.size === 0 && this.#unsettled === 0;
      const began = this.clock.now();
      let { jobs, failed } = await this.#pollOnce();
      const took = this.clock.now() - began;
      if (!failed || !this.stopping.aborted) this.tell("poll", jobs.length, took / 1000, failed);
      this.#take(jobs);
      if (this.stopping.aborted) return;
      if (!failed && jobs.length === 0) {
        if (this.untilIdle) {
          if (idle) return;
          await this.#wait(() => this.#tasks.size === 0, this.stopping);
          this.acks.sendAll();
          await this.#wait(() => this.#unsettled === 0, this.stopping);
        } else if (took < settings.poll / 2) {
          const message = "the poll came back empty before its time-out";
          failed = new DormouseError("unavailable", this.ask.op, message, { status: 404 });
        }
      }
      if (!failed) {
        failures = 0;
        this.#isBack();
        continue;
      }
      if (FATAL.has(failed.type)) {
        settings.logger.error("the worker ends", { error: failed.message, type: failed.type, status: failed.status });
        throw failed;
      }
      this.#isAway(failed);
      await sleep(this.clock, Math.max(pauseAfter(failures), (failed.retryAfter ?? 0) * 1000), this.stopping);
      failures++;
    }
  }

  /** Polls once. When the worker stops, the poll is closed without losing a job in transit. */
  async #pollOnce(): Promise<{ jobs: HeldJob[]; failed?: DormouseError }> {
    const cut = new AbortController();
    let heard = false;
    let cancel = (): void => undefined;
    const hangUp = (): void => {
      cancel = this.clock.after(heard ? REST : LAST_WORD, () => {
        if (!heard) return cut.abort();
        cancel = this.clock.after(REST, () => cut.abort());
      });
    };
    this.stopping.addEventListener("abort", hangUp);
    const query = { ...this.ask.query, count: String(Math.min(this.#free, 100)) };
    const ask: Ask = { ...this.ask, query, signal: cut.signal, leave: this.stopping, heard: () => (heard = true) };
    try {
      return { jobs: await consume(this.caller, ask, this.settings.ttr / 1000) };
    } catch (error) {
      if (cut.signal.aborted) return { jobs: [] };
      if (error instanceof DormouseError) return { jobs: [], failed: error };
      throw error;
    } finally {
      cancel();
      this.stopping.removeEventListener("abort", hangUp);
    }
  }

  /** Starts jobs, or returns them to their queue if the worker stops. */
  #take(jobs: HeldJob[]): void {
    for (const job of jobs) {
      if (holdOf(job).left <= 0) { // so long the answer took
        this.logLost(job);
        continue;
      }
      const task = new Task(this, job);
      const handler = this.handlers.get(job.queue);
      this.#unsettled++;
      if (!handler || this.stopping.aborted) {
        void task.settle(RETURNED);
        continue;
      }
      this.#free--;
      this.#tasks.add(task);
      task.begin(handler);
    }
  }

  /** Frees the slot of a task whose handler has returned. */
  leave(task: Task): void {
    this.#tasks.delete(task);
    this.#free++;
    this.#changed();
  }

  /** Called once for each consumed job: when its result was sent, or when it is lost. */
  settled(): void {
    this.#unsettled--;
    this.#changed();
  }

  #changed(): void {
    for (const look of [...this.#looks]) look();
  }

  /** Waits for a condition: at most for the given time, and until the interrupt. */
  #wait(is: () => boolean, interrupt?: AbortSignal, most?: number): Promise<boolean> {
    return new Promise((resolve) => {
      if (is() || interrupt?.aborted) return resolve(is());
      const end = (): void => {
        this.#looks.delete(look);
        interrupt?.removeEventListener("abort", end);
        cancel();
        resolve(is());
      };
      const look = (): void => {
        if (is()) end();
      };
      const cancel = most === undefined ? (): void => undefined : this.clock.after(most, end);
      this.#looks.add(look);
      interrupt?.addEventListener("abort", end);
    });
  }

  #isAway(error: DormouseError): void {
    if (this.#away !== undefined) return;
    this.#away = this.clock.now();
    const { message, type, status } = error;
    this.settings.logger.warn("the server cannot be polled", { error: message, type, status });
    this.tell("away", error);
  }

  #isBack(): void {
    if (this.#away === undefined) return;
    const seconds = (this.clock.now() - this.#away) / 1000;
    this.#away = undefined;
    this.settings.logger.info("the server can be polled again", { seconds });
    this.tell("back", seconds);
  }

  /** Lets handlers continue for their time, and sends all results. Returns how many handlers had not returned. */
  async #end(): Promise<number> {
    const { drain, grace } = this.settings;
    const returned = (): boolean => this.#tasks.size === 0;
    this.tell("drain", this.#tasks.size);
    this.acks.sendAll();
    let left = 0;
    if (!(await this.#wait(returned, this.#hurry.signal, drain))) {
      for (const task of [...this.#tasks]) task.cancel("drain");
      if (!(await this.#wait(returned, this.#hurry.signal, grace))) {
        for (const task of [...this.#tasks]) if (task.abandon(RETURNED)) left++;
      }
    }
    await this.#wait(() => this.#unsettled === 0);
    return left;
  }

  /** Waits before a retry. Returns whether there is time for one. */
  async waitInTime(hold: Hold, n: number, failed: DormouseError): Promise<boolean> {
    const pause = pauseInTime(hold, n, failed);
    return pause !== undefined && sleep(this.clock, pause);
  }

  /** Returns the seconds until a job is retried. */
  backoff(attempt: number, error: Error): number {
    try {
      const after = this.settings.backoff(attempt, error);
      if (Number.isFinite(after)) return after;
      this.settings.logger.error("the back-off is no number", { attempt });
    } catch (thrown) {
      this.settings.logger.error("the back-off has failed", { attempt, error: String(thrown) });
    }
    return spread(AFTER_BAD_BACKOFF);
  }

  /** Calls a hook, if there is one. Its error is logged and ignored. */
  tell<K extends keyof Hooks>(name: K, ...args: Parameters<NonNullable<Hooks[K]>>): void {
    try {
      (this.settings.hooks[name] as ((...args: unknown[]) => void) | undefined)?.(...args);
    } catch (thrown) {
      this.settings.logger.error("a hook has failed", { hook: name, error: String(thrown) });
    }
  }

  logLost(job: HeldJob): void {
    const message = "a job is lost: it was not kept in time, and somebody else gets it";
    this.settings.logger.warn(message, { queue: job.queue, job: job.id });
  }

  /** Warns once when the event loop was blocked for so long that jobs may be lost, since touches were not sent. */
  #watchLoop(): () => void {
    const { ttr, logger } = this.settings;
    const step = Math.min(1000, ttr / 12);
    let last = this.clock.now();
    let cancel: () => void;
    const look = (): void => {
      const now = this.clock.now();
      const late = now - last - step;
      last = now;
      if (late >= ttr / 3) {
        logger.warn("the event loop hung: jobs are not touched meanwhile, and may be lost", { seconds: late / 1000 });
        return;
      }
      cancel = this.clock.after(step, look, true);
    };
    cancel = this.clock.after(step, look, true);
    return () => cancel();
  }
}

/** Minimum remaining time of a delivery for a retry, in milliseconds. */
const LAST_REPEAT = 100;

/**
 * Returns the pause before the next retry, if there is time for one. If the job would expire before the time that the
 * server asks for, it is half of the remaining time: that server may be back long before. @internal
 */
export function pauseInTime(hold: Hold, n: number, failed: DormouseError): number | undefined {
  const pause = Math.max(pauseAfter(n), (failed.retryAfter ?? 0) * 1000);
  const { left } = hold;
  return left <= LAST_REPEAT ? undefined : pause < left ? pause : left / 2;
}

/** Limits concurrency; further callers wait in order. @internal */
export class Flights {
  readonly #waiting: (() => void)[] = [];
  constructor(private free: number) {}

  /** The returned function frees the place. */
  async take(): Promise<() => void> {
    if (this.free > 0) this.free--;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return () => {
      const next = this.#waiting.shift();
      if (next) next();
      else this.free++;
    };
  }
}
