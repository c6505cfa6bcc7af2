/** The worker: its options, its handlers, and its interface. run.ts implements it, task.ts handles a single job. */

import { callerOf, type Client, consumeAsk } from "./client.js";
import { spread } from "./clock.js";
import { type DormouseError, invalid, isError, PanicError } from "./errors.js";
import type { HeldJob, Outcome } from "./job.js";
import { Run, type Settings } from "./run.js";

/** Context of a handler. */
export interface Context {
  /** Aborted when the job is lost, its time is up, or the worker stops: its `reason` is a {@link CancelledError}. */
  readonly signal: AbortSignal;
}

/**
 * Handles a job. If it returns, the job is acked; if it throws, the job is retried. `RetryAfter`, `Snooze` and
 * `Permanent` are more specific.
 */
export type Handler = (job: HeldJob, context: Context) => unknown;

/** Wraps handlers: it calls `next`, which throws the handler's error, as an `Error`. */
export type Middleware = (job: HeldJob, context: Context, next: () => Promise<void>) => unknown;

/** Describes how a job ended. */
export interface Finished {
  outcome: Outcome;
  /** Of the handler. */
  seconds: number;
  /** Seconds since the publish. */
  elapsed: number;
  /** The handler's error. */
  error: unknown;
}

/** Receive events of a worker. */
export interface Hooks {
  /** A poll has returned this number of jobs, or an error. */
  poll?: (jobs: number, seconds: number, error: DormouseError | undefined) => void;
  start?: (job: HeldJob) => void;
  /** The server has accepted the result, or the handler of a lost job has returned. */
  finish?: (job: HeldJob, finished: Finished) => void;
  /** The worker has touched a job. */
  touch?: (job: HeldJob, error: DormouseError | undefined) => void;
  /** Polls begin to fail: once per outage. */
  away?: (error: DormouseError) => void;
  /** The outage has ended. */
  back?: (seconds: number) => void;
  /** The worker stops, with this number of running handlers. */
  drain?: (running: number) => void;
}

/**
 * Receives the worker's log lines: `console` is one, and so is the logger of most libraries. No line has a body or the
 * token.
 */
export interface Logger {
  info(message: string, fields: Record<string, unknown>): void;
  warn(message: string, fields: Record<string, unknown>): void;
  error(message: string, fields: Record<string, unknown>): void;
}

/** Durations are in seconds. */
export interface WorkerOptions {
  /** Maximum concurrent handlers, over all queues; 10 by default. */
  concurrency?: number;
  /**
   * Duration of a delivery: how long it takes until another worker gets the job if this process dies. Whole seconds, at
   * least 3; 30 by default.
   */
  ttr?: number;
  /** How long a poll waits: below the timeouts of proxies. Rounded up to seconds; 20 by default. */
  poll?: number;
  /**
   * Delays after the first failure of a job, the second … The last repeats. Each is varied by up to a tenth. Or a
   * function of the failed attempt, from 1, and its error. The default is 5 s, 30 s, 5 min, 30 min, 2 h.
   */
  backoff?: readonly number[] | ((attempt: number, error: Error) => number);
  /** After this time a handler's signal is aborted. There is no limit by default. */
  timeLimit?: number;
  /** How long handlers may continue when the worker stops; 25 by default. */
  drain?: number;
  /** How long handlers may continue after their signal was aborted; 5 by default. */
  grace?: number;
  /** How long an ack waits for others, to be sent together; 0.005 by default. */
  ackWindow?: number;
  /** Proportions of the queues, 1 to 1000 each. By default earlier queues take precedence. */
  weights?: Readonly<Record<string, number>>;
  hooks?: Hooks;
  /** Standard error by default. */
  logger?: Logger;
  /** `false` leaves SIGTERM and SIGINT to the program. */
  signals?: boolean;
}

const DEFAULT_BACKOFF = [5, 30, 300, 1800, 7200];
const OP = "new worker";

/** Consumes jobs and runs their handlers. */
export class Worker {
  readonly #client: Client;
  readonly #settings: Settings;
  readonly #weights: Readonly<Record<string, number>> | undefined;
  readonly #signals: boolean;
  readonly #handlers = new Map<string, Handler>();
  readonly #middleware: Middleware[] = [];
  #running: Run | undefined;

  constructor(client: Client, options: WorkerOptions = {}) {
    const { concurrency = 10, ttr = 30, poll = 20, drain = 25, grace = 5, ackWindow = 0.005, weights, timeLimit } = options;
    valid(Number.isSafeInteger(concurrency) && concurrency > 0, "concurrency should be a whole number, 1 at least");
    valid(Number.isSafeInteger(ttr) && ttr >= 3, "ttr should be whole seconds, 3 at least");
    valid(poll > 0, "poll should be longer than 0");
    valid(drain >= 0 && grace >= 0 && ackWindow >= 0, "a duration is negative");
    valid(timeLimit === undefined || timeLimit > 0, "timeLimit should be longer than 0");
    for (const weight of Object.values(weights ?? {})) {
      valid(Number.isInteger(weight) && weight >= 1 && weight <= 1000, "a weight is from 1 to 1000");
    }
    this.#client = client;
    this.#weights = weights;
    this.#signals = options.signals ?? true;
    this.#settings = {
      concurrency,
      ttr: ttr * 1000,
      poll: Math.ceil(poll) * 1000,
      backoff: backoffOf(options.backoff ?? DEFAULT_BACKOFF),
      timeLimit: timeLimit === undefined ? undefined : timeLimit * 1000,
      drain: drain * 1000,
      grace: grace * 1000,
      ackWindow: ackWindow * 1000,
      hooks: options.hooks ?? {},
      logger: options.logger ?? standardError,
    };
  }

  /** Sets the handler of a queue, from the next run on. Earlier queues take precedence. */
  handle(queue: string, handler: Handler): this {
    if (typeof handler !== "function") throw invalid("handle", "the handler should be a function");
    this.#handlers.set(queue, handler);
    return this;
  }

  /** Wraps all handlers, from the next run on: the first is the outermost. */
  use(...middleware: Middleware[]): this {
    this.#middleware.push(...middleware);
    return this;
  }

  /**
   * Works until it is stopped: by SIGTERM or SIGINT, by {@link stop}, or by the given signal. Then it consumes no more
   * jobs, lets handlers continue for `drain` and then for `grace`, returns unfinished jobs to their queues, and
   * resolves; it rejects with an {@link UncleanError} if a handler had not returned. A second signal ends both times. A
   * permanent error, such as an invalid token, ends the worker with that error.
   */
  async run({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#work(false, signal);
  }

  /**
   * Handles the jobs that are due, and returns when a poll has found nothing and no handler runs: for tests, and for
   * timers.
   */
  async runUntilIdle({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#work(true, signal);
  }

  /** Ends `run` like a signal. It does not wait. */
  stop(): void {
    this.#running?.stop();
  }

  async #work(untilIdle: boolean, signal: AbortSignal | undefined): Promise<void> {
    const run = this.#begin(untilIdle);
    const stop = (): void => run.stop();
    const names: NodeJS.Signals[] = this.#signals ? ["SIGTERM", "SIGINT"] : [];
    for (const name of names) process.on(name, stop);
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
    try {
      await run.work();
    } finally {
      this.#running = undefined;
      for (const name of names) process.off(name, stop);
      signal?.removeEventListener("abort", stop);
    }
  }

  #begin(untilIdle: boolean): Run {
    const op = "run";
    if (this.#running) throw invalid(op, "the worker runs already");
    const queues = [...this.#handlers.keys()];
    if (queues.length === 0) throw invalid(op, "the worker has no handler");
    if (queues.length > 100) throw invalid(op, "a worker has 100 queues at most");
    let weights: number[] | undefined;
    if (this.#weights) {
      const given = new Map(Object.entries(this.#weights));
      weights = queues.map((queue) => {
        const weight = given.get(queue);
        if (weight === undefined) throw invalid(op, `the queue ${queue} has no weight`);
        return weight;
      });
      if (given.size !== queues.length) throw invalid(op, "a queue that has a weight has no handler");
    }
    const caller = callerOf(this.#client);
    const { poll, ttr } = this.#settings;
    const asked = { ttr: ttr / 1000, timeout: untilIdle ? 0 : poll / 1000, ...(weights && { weights }) };
    const ask = { ...consumeAsk(queues, asked), timeout: 10_000, waits: poll, retryFor: 0 };
    const handlers = new Map([...this.#handlers].map(([queue, handler]) => [queue, this.#wrapped(handler)]));
    this.#running = new Run(caller, this.#settings, handlers, ask, untilIdle);
    return this.#running;
  }

  #wrapped(handler: Handler): Handler {
    let wrapped = errorsOnly(handler);
    for (const middleware of [...this.#middleware].reverse()) {
      const inner = wrapped;
      wrapped = errorsOnly((job, context) => middleware(job, context, () => inner(job, context)));
    }
    return wrapped;
  }
}

/** Returns a handler that throws only errors. */
function errorsOnly(handler: Handler): (job: HeldJob, context: Context) => Promise<void> {
  return async (job, context) => {
    try {
      await handler(job, context);
    } catch (thrown) {
      throw isError(thrown) ? thrown : new PanicError(thrown);
    }
  };
}

function backoffOf(given: NonNullable<WorkerOptions["backoff"]>): Settings["backoff"] {
  if (typeof given === "function") return given;
  const delays = [...given];
  valid(delays.length > 0 && delays.every((delay) => delay >= 0), "backoff needs a delay, and none is negative");
  return (attempt) => spread(delays[Math.min(attempt, delays.length) - 1] as number);
}

function valid(holds: boolean, otherwise: string): void {
  if (!holds) throw invalid(OP, otherwise);
}

/** Writes a line, or several with a stack. */
function write(level: string, message: string, fields: Record<string, unknown>): void {
  const { stack, ...rest } = fields;
  const told = Object.entries(rest).filter(([, value]) => value !== undefined);
  const line = [`${level} dormouse: ${message}`, ...told.map(([name, value]) => `${name}=${JSON.stringify(value)}`)].join(" ");
  process.stderr.write(`${line}\n${typeof stack === "string" ? `${stack}\n` : ""}`);
}

const standardError: Logger = {
  info: (message, fields) => write("INFO", message, fields),
  warn: (message, fields) => write("WARN", message, fields),
  error: (message, fields) => write("ERROR", message, fields),
};
