/** Jobs that were looked up or delivered. worker.ts handles them. */

import { type Answer, type Caller, instant, number, object, optional, type Query, seconds, text } from "./call.js";
import { cut, DormouseError, invalid, Permanent } from "./errors.js";

/** State of a job. */
export type State = "ready" | "delayed" | "running" | "dead";

/** Result of a worker's job. `released` also if the job died of it, `returned` if the worker stopped. */
export type Outcome = "acked" | "released" | "buried" | "snoozed" | "returned" | "lost";

/** A job. */
export class Job {
  readonly id: string;
  readonly queue: string;
  readonly namespace: string;
  readonly data: Buffer;
  /** Number of deliveries left. */
  readonly remainTries: number;
  /** Seconds until it expires; 0 is never. */
  readonly ttl: number;
  /** Seconds from its publish to its delivery or look-up. */
  readonly elapsed: number;
  readonly attributes: Readonly<Record<string, string>>;

  /** @internal */
  constructor(answer: Answer) {
    this.id = text(answer, "job_id");
    this.queue = optional(answer, "queue") ?? "";
    this.namespace = optional(answer, "namespace") ?? "";
    this.data = Buffer.from(optional(answer, "data") ?? "", "base64");
    this.remainTries = answer.remain_tries === null ? 0 : number(answer, "remain_tries"); // unknown in some stores
    this.ttl = number(answer, "ttl");
    this.elapsed = number(answer, "elapsed_ms") / 1000;
    this.attributes = attributesOf(answer);
  }

  /** The attribute of that name: the job's trace. */
  get traceparent(): string | undefined {
    return this.attributes.traceparent;
  }

  /** The body as text. */
  text(): string {
    return this.data.toString();
  }

  /**
   * Parses the body as JSON. An invalid body throws a {@link Permanent}: if a handler does not catch it, the job is
   * buried.
   */
  json<T = unknown>(): T {
    try {
      return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(this.data)) as T;
    } catch (error) {
      // The parser's own text contains a part of the body, which must not be logged.
      const why = error instanceof SyntaxError ? "this is no JSON" : "this is no UTF-8";
      throw new Permanent(new Error(`the body cannot be read: ${why}`, { cause: error }));
    }
  }
}

/** A job that was looked up, without a delivery. */
export class JobInfo extends Job {
  /** Missing if the store cannot tell it cheaply. */
  readonly state: State | undefined;
  /** When it is, or became, ready; for a running job, when its delivery ends. */
  readonly dueAt: Date | undefined;
  readonly key: string | undefined;
  /** Of the last release or bury that gave one. */
  readonly reason: string | undefined;

  /** @internal */
  constructor(answer: Answer) {
    super(answer);
    this.state = optional(answer, "state") as State | undefined;
    this.dueAt = instant(answer, "due_at");
    this.key = optional(answer, "key");
    this.reason = optional(answer, "reason");
  }
}

/** @internal */
export function attributesOf(answer: Answer): Record<string, string> {
  const given = answer.attributes;
  return given === null || given === undefined ? {} : (object(given) as Record<string, string>);
}

/** How to return a job to its queue. */
export interface Release {
  /** Seconds until it is ready again. */
  delay?: number;
  /** Shown with the job; at most 4 KiB. */
  reason?: string;
  /** Restores the try of this delivery. */
  keepTry?: boolean;
}

/** Result of a release. */
export interface Released {
  /** No try was left. */
  dead: boolean;
  remainTries: number;
  dueAt: Date | undefined;
}

/** Returns the {@link Hold} of a job. @internal */
export let holdOf: (job: HeldJob) => Hold;

/** A delivered job, with its receipt. A worker calls these methods by itself. */
export class HeldJob extends Job {
  readonly #hold: Hold;
  static {
    holdOf = (job) => job.#hold;
  }

  /** @internal */
  constructor(caller: Caller, answer: Answer, receipt: string, until: number) {
    super(answer);
    this.#hold = new Hold(caller, this, receipt, until);
  }

  /**
   * Extends the delivery to `ttr` seconds from now; by default the worker's, or the server's. Returns when the delivery
   * ends.
   */
  async touch(ttr?: number): Promise<Date | undefined> {
    if (ttr !== undefined) seconds(`touch ${this.queue}`, "ttr", ttr);
    const kept = ttr ?? this.#hold.keeper?.ttr;
    const until = await this.#hold.byHand((bounds) => this.#hold.touch(kept, bounds));
    if (kept !== undefined) this.#hold.keeper?.touched(kept);
    return until;
  }

  /** Deletes the job, which is done. */
  async ack(): Promise<void> {
    await this.#hold.byHand(async (bounds) => {
      await this.#hold.ack(bounds);
      this.#hold.outcome = "acked";
    });
  }

  /** Returns the job to its queue. */
  async release(how: Release = {}): Promise<Released> {
    return this.#hold.byHand(async (bounds) => {
      const released = await this.#hold.release(how, bounds);
      this.#hold.outcome = "released";
      return released;
    });
  }

  /** Moves the job to the dead letter, even if tries are left. */
  async bury(reason = ""): Promise<void> {
    await this.#hold.byHand(async (bounds) => {
      await this.#hold.bury(reason, bounds);
      this.#hold.outcome = "buried";
    });
  }

  /** Returns the number of this attempt at the job, from 1. The first call asks the server. */
  async attempt(): Promise<number> {
    this.#hold.checkOurs();
    return this.#hold.attempt(this.#hold.bounds);
  }
}

/** Timeout of a worker's request in milliseconds. The client does not retry it. @internal */
export interface Bounds {
  timeout?: number;
  retryFor?: number;
}

/** The worker's part in a handler's manual calls. @internal */
export interface Keeper {
  readonly ttr: number;
  touched(ttr: number): void;
  lose(): void;
}

/** Maximum bytes of a reason. */
const MAX_REASON = 4096;

/**
 * A delivery: its receipt, and the requests that need it. Except `byHand` and `attempt`, methods require the turn: a
 * touch and the result of a job never cross. @internal
 */
export class Hold {
  outcome: Outcome | undefined;
  keeper: Keeper | undefined;
  /** The reply of a touch was lost, so the receipt may be old. */
  touchLost = false;
  /** The reply of a release or bury was lost, so it may have been executed. */
  givenLost = false;
  /** And its try restored: the receipt that the server shows may be another worker's. */
  #givenBack = false;
  #turn: Promise<void> = Promise.resolve();
  #attempt: number | undefined;

  constructor(
    readonly caller: Caller,
    readonly job: HeldJob,
    public receipt: string,
    /** End of the delivery, by the local clock. */
    public until: number,
  ) {}

  /** Remaining milliseconds of the delivery. */
  get left(): number {
    return this.until - this.caller.clock.now();
  }

  /** Waits until nothing is in flight for the job. The returned function ends the turn. */
  async takeTurn(): Promise<() => void> {
    const before = this.#turn;
    let end!: () => void;
    this.#turn = new Promise((resolve) => {
      end = resolve;
    });
    await before;
    return end;
  }

  /** Limits of a manual call: for a worker's job, not longer than its delivery. */
  get bounds(): Bounds {
    if (!this.keeper) return {};
    const left = Math.max(this.left, 1);
    return { timeout: Math.min(this.caller.timeout, left), retryFor: Math.min(this.caller.retryFor, left) };
  }

  /** Throws if the job is lost, since nothing more is sent for it. */
  checkOurs(): void {
    if (this.outcome !== "lost") return;
    throw new DormouseError("lost", `job of ${this.job.queue}`, "the job is not yours any more", { status: 409 });
  }

  /** Executes a call in the job's turn. Looks up the receipt if a touch with a lost reply may have replaced it. */
  async byHand<T>(call: (bounds: Bounds) => Promise<T>): Promise<T> {
    const endTurn = await this.takeTurn();
    try {
      this.checkOurs();
      try {
        return await call(this.bounds);
      } catch (error) {
        const looks = error instanceof DormouseError && error.type === "lost" && this.touchLost;
        if (!looks || !(await this.findReceipt(this.bounds))) throw error;
        return await call(this.bounds);
      }
    } catch (error) {
      if (error instanceof DormouseError && (error.type === "lost" || error.type === "not_found")) this.keeper?.lose();
      throw error;
    } finally {
      endTurn();
    }
  }

  /** Durations of jobs are in seconds, bounds in milliseconds. */
  async touch(ttr: number | undefined, bounds: Bounds = {}): Promise<Date | undefined> {
    const op = `touch ${this.job.queue}`;
    const query: Query = { receipt: this.receipt };
    if (ttr !== undefined) query.ttr = seconds(op, "ttr", ttr);
    const sent = this.caller.clock.now();
    try {
      return await this.caller.call({ op, method: "POST", ...this.#path("touch"), query, ...bounds }, (body) => {
        const answer = object(body);
        this.receipt = text(answer, "receipt");
        this.touchLost = false;
        if (ttr !== undefined) this.until = sent + ttr * 1000;
        return instant(answer, "until");
      });
    } catch (error) {
      if (error instanceof DormouseError && error.answerLost) this.touchLost = true;
      throw error;
    }
  }

  async ack(bounds: Bounds = {}): Promise<void> {
    await this.caller.done({
      op: `ack ${this.job.queue}`, method: "DELETE", ...this.#path(), query: { receipt: this.receipt }, repeat: true, ...bounds,
    });
  }

  async release(how: Release, bounds: Bounds = {}): Promise<Released> {
    const query: Query = {};
    if (how.delay !== undefined && how.delay !== 0) query.delay = seconds(`release ${this.job.queue}`, "delay", how.delay);
    if (how.keepTry) query.spend = "0";
    return this.#give("release", query, how.reason ?? "", bounds, (answer) => ({
      dead: answer.msg === "dead",
      remainTries: answer.msg === "dead" ? 0 : number(answer, "remain_tries"),
      dueAt: instant(answer, "due_at"),
    }));
  }

  async bury(reason: string, bounds: Bounds = {}): Promise<void> {
    await this.#give("bury", {}, reason, bounds, () => undefined);
  }

  async #give<T>(
    verb: string, query: Query, reason: string, bounds: Bounds, read: (answer: Answer) => T,
  ): Promise<T> {
    try {
      return await this.caller.call(
        {
          op: `${verb} ${this.job.queue}`, method: "POST", ...this.#path(verb),
          query: { ...query, receipt: this.receipt }, body: Buffer.from(cut(reason, MAX_REASON)), ...bounds,
        },
        (body) => read(object(body)),
      );
    } catch (error) {
      if (error instanceof DormouseError && error.answerLost) {
        this.givenLost = true;
        this.#givenBack ||= query.spend === "0";
      }
      throw error;
    }
  }

  /**
   * Looks up the current receipt, after a touch whose reply was lost, and returns whether there is one. It is ours only
   * while the delivery lasts by the local clock.
   */
  async findReceipt(bounds: Bounds = {}): Promise<boolean> {
    if (this.#givenBack) return false;
    let now: string | undefined;
    try {
      now = await this.#look({ receipt: this.receipt }, bounds, (answer) => optional(answer, "receipt"));
    } catch (error) {
      if (error instanceof DormouseError && error.type === "not_found") return false;
      throw error;
    }
    if (now === undefined || this.left <= 0) return false;
    this.receipt = now;
    this.touchLost = false;
    return true;
  }

  async attempt(bounds: Bounds = {}): Promise<number> {
    this.#attempt ??= await this.#look({}, bounds, (answer) => attemptTold(optional(answer, "reason") ?? "") + 1);
    return this.#attempt;
  }

  #look<T>(query: Query, bounds: Bounds, read: (answer: Answer) => T): Promise<T> {
    const ask = { op: `look ${this.job.queue}`, method: "GET", ...this.#path(), repeat: true, ...bounds } as const;
    return this.caller.call({ ...ask, query: { verbose: "1", ...query } }, (body) => {
      const answer = object(body);
      text(answer, "job_id");
      return read(answer);
    });
  }

  #path(verb?: string): { queues: string[]; path: string[] } {
    return { queues: [this.job.queue], path: verb === undefined ? ["job", this.job.id] : ["job", this.job.id, verb] };
  }
}

/** Returns the attempt in a reason written by push or a worker; 0 for other reasons. */
function attemptTold(reason: string): number {
  const told = /^attempt (\d{1,10}):/.exec(reason);
  const n = told ? Number(told[1]) : 0;
  return n < 2 ** 31 - 1 ? n : 0;
}

/** @internal */
export function notConsumed(op: string, index?: number): DormouseError {
  return invalid(op, "the job was not consumed from this queue", { index });
}
