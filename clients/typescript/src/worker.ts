/** The worker: its options, its handlers, and what calls it. run.ts has what it does, task.ts one job in its hands. */

import { callerOf, type Client, consumeAsk } from "./client.js";
import { spread } from "./clock.js";
import { type DormouseError, invalid, isError, PanicError } from "./errors.js";
import type { HeldJob, Outcome } from "./job.js";
import { Run, type Settings } from "./run.js";

/** What a handler gets beside its job. */
export interface Context {
  /** Is aborted when the job is lost, its time is up, or the worker stops: its `reason` is a {@link CancelledError}. */
  readonly signal: AbortSignal;
}

/**
 * Does a job. When it returns, the job is acked; when it throws, the job is tried again. `RetryAfter`, `Snooze` and
 * `Permanent` say more.
 */
export type Handler = (job: HeldJob, context: Context) => unknown;

/** Wraps handlers: it calls `next`, which throws what the handler has thrown, as an `Error`. */
export type Middleware = (job: HeldJob, context: Context, next: () => Promise<void>) => unknown;

/** How a job ended. */
export interface Finished {
  outcome: Outcome;
  /** Of the handler. */
  seconds: number;
  /** Seconds since the publish. */
  elapsed: number;
  /** What the handler threw. */
  error: unknown;
}

/** Are called as a worker goes about its work. */
export interface Hooks {
  /** A poll has come back with so many jobs, or with an error. */
  poll?: (jobs: number, seconds: number, error: DormouseError | undefined) => void;
  start?: (job: HeldJob) => void;
  /** The server has taken the result, or the handler of a lost job has returned. */
  finish?: (job: HeldJob, finished: Finished) => void;
  /** The worker has touched a job. */
  touch?: (job: HeldJob, error: DormouseError | undefined) => void;
  /** The server cannot be polled: once an outage. */
  away?: (error: DormouseError) => void;
  /** The outage has ended. */
  back?: (seconds: number) => void;
  /** The worker stops, with so many handlers at work. */
  drain?: (running: number) => void;
}

/** Takes the worker's lines: `console` is one, and so is that of most libraries. No line has a body or the token. */
export interface Logger {
  info(message: string, fields: Record<string, unknown>): void;
  warn(message: string, fields: Record<string, unknown>): void;
  error(message: string, fields: Record<string, unknown>): void;
}

/** Durations are in seconds. */
export interface WorkerOptions {
  /** Handlers at a time, over all queues; 10 when it is not given. */
  concurrency?: number;
  /** How long a job is held at a time: until somebody else gets it when this process dies. Whole, 3 at least; 30. */
  ttr?: number;
  /** How long a poll waits: less than proxies on the way cut. A part of a second counts as one; 20. */
  poll?: number;
  /**
   * After how long a job is tried again that has failed once, twice … The last repeats, each up to a tenth shorter or
   * longer. Or a function of the attempt that has failed, from 1, and its error. 5 s, 30 s, 5 min, 30 min, 2 h.
   */
  backoff?: readonly number[] | ((attempt: number, error: Error) => number);
  /** Of a handler: its signal is aborted then. There is none when it is not given. */
  timeLimit?: number;
  /** For how long handlers may go on when the worker stops; 25. */
  drain?: number;
  /** For how long handlers may go on whose signal was aborted; 5. */
  grace?: number;
  /** How long an ack waits for others, to be sent together; 0.005. */
  ackWindow?: number;
  /** In what proportion the queues are served, 1 to 1000 each. Without it the first that has jobs goes first. */
  weights?: Readonly<Record<string, number>>;
  hooks?: Hooks;
  /** Standard error when it is not given. */
  logger?: Logger;
  /** `false` leaves SIGTERM and SIGINT to the program. */
  signals?: boolean;
}

const DEFAULT_BACKOFF = [5, 30, 300, 1800, 7200];
const OP = "new worker";

/** Fetches jobs and has handlers do them. */
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

  /** Has the handler do the jobs of a queue, from the next run on. The first queue is served first. */
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
   * Works until it is told to stop: by SIGTERM or SIGINT, by {@link stop}, or by the signal that is given. Then it takes
   * no more jobs, lets handlers go on for `drain` and then for `grace`, gives back what they have not done, and returns;
   * with an {@link UncleanError} when a handler had not returned. A second signal ends both times. What no repeat can
   * mend, such as a wrong token, ends the worker with that error.
   */
  async run({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#work(false, signal);
  }

  /** Handles what is due, and returns when a poll has found nothing and no handler works: for tests, and for timers. */
  async runUntilIdle({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#work(true, signal);
  }

  /** Has run end as at a signal. It does not wait. */
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

/** A handler that throws errors alone. */
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

/** Writes a line, or more where there is a stack. */
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
