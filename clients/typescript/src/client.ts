/** The client: requests and their replies. call.ts sends and retries them, message.ts has the options of a publish. */

import {
  type Answer, type Ask, Caller, instant, list, number, object, optional, printable, type Query, randomKey, seconds,
  string, text, wholeSeconds,
} from "./call.js";
import { type Clock, systemClock } from "./clock.js";
import { DormouseError, invalid } from "./errors.js";
import { attributesOf, type Bounds, HeldJob, holdOf, Job, JobInfo, notConsumed, type State } from "./job.js";
import { type Data, type JobOptions, jsonText, Message, type NewJob } from "./message.js";
import { Connections, type Fetch } from "./transport.js";

/** Address of the server, and timeouts. Durations are in seconds. */
export interface ClientOptions {
  /** For example `http://127.0.0.1:7777`; it may have a path before `/api`. */
  url: string;
  namespace: string;
  token?: string;
  /** Timeout of one request; 10 by default. */
  timeout?: number;
  /** Time for a call with its retries and pauses; 30 by default, at most 540, and 0 disables retries. */
  retryFor?: number;
  /** Sends the requests instead of the client's own connections: for a proxy, certificates, or a test double. */
  fetch?: Fetch;
  /** @internal */
  clock?: Clock;
}

/** Options of every call. */
export interface CallOptions {
  /** Ends the call: it rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** Options of a publish of one job. */
export interface PublishOptions extends JobOptions, CallOptions {
  /** A repeated publish with the same key stores nothing for ten minutes. By default each call has a random key. */
  idempotencyKey?: string;
}

/** Result of a publish. */
export interface Published {
  jobId: string;
  /** When it becomes ready. */
  dueAt: Date | undefined;
  /** The key was taken, and nothing was stored: `jobId` is the job that has it. */
  duplicate: boolean;
  /** The id of the job that was replaced. */
  replaced: string | undefined;
  /** The reply is that of an earlier request with this idempotency key. */
  replayed: boolean;
}

/** Options of a consume. Omitted ones get the server's defaults. Durations are in whole seconds, rounded up. */
export interface ConsumeOptions extends CallOptions {
  /** Maximum number of jobs, 1 to 100. */
  count?: number;
  /** Time until a job is redelivered unless touched. */
  ttr?: number;
  /** How long to wait for a job. */
  timeout?: number;
  /** One for each queue: their proportions. By default earlier queues take precedence. */
  weights?: readonly number[];
}

/** Result of an ack of several jobs. */
export interface Acked {
  acked: number;
  /** Ids of jobs that are no longer the caller's. */
  stale: string[];
}

/** The dead jobs of a queue. */
export interface DeadLetter {
  size: number;
  /** The id of the oldest. */
  head: string | undefined;
}

/** Options of a respawn. */
export interface RespawnOptions extends CallOptions {
  /** 1 by default. */
  tries?: number;
  delay?: number;
  ttl?: number;
}

/** Result of a respawn. */
export interface Respawned {
  respawned: number;
  /** Ids of jobs that are not dead or do not exist. */
  missing: string[];
}

/** A queue of the namespace. Numbers that the store cannot count cheaply are missing. */
export interface QueueInfo {
  queue: string;
  ready: number | undefined;
  delayed: number | undefined;
  running: number | undefined;
  dead: number | undefined;
  /** Age of the oldest ready job in seconds. */
  oldestReadyAge: number | undefined;
  paused: boolean;
  pausedUntil: Date | undefined;
}

/** A job in a list. */
export interface ListedJob {
  id: string;
  state: State;
  dueAt: Date | undefined;
  publishedAt: Date | undefined;
  remainTries: number;
  ttl: number;
  key: string | undefined;
  reason: string | undefined;
  /** Of the body, in bytes. */
  size: number;
  /** Present in a list with bodies, like `attributes`. */
  data: Buffer | undefined;
  attributes: Readonly<Record<string, string>> | undefined;
}

/** Maximum size of a batch. */
const BATCH_JOBS = 64;
const BATCH_BYTES = 8 * 1024 * 1024;
/** Maximum number of jobs per ack or respawn. */
const MANY = 100;

/** Returns the caller of a client. @internal */
export let callerOf: (client: Client) => Caller;

/** Sends requests for one namespace. Share it, since it reuses its connections. */
export class Client {
  readonly namespace: string;
  readonly #caller: Caller;
  readonly #connections: Connections | undefined;
  static {
    callerOf = (client) => client.#caller;
  }

  constructor(options: ClientOptions) {
    const { url, namespace, token = "", timeout = 10, retryFor = 30, fetch, clock = systemClock } = options;
    if (!fetch) this.#connections = new Connections();
    const through = fetch ?? (this.#connections as Connections).fetch;
    this.#caller = new Caller(url, namespace, token, timeout * 1000, retryFor * 1000, through, clock);
    this.namespace = namespace;
  }

  /**
   * Returns a client configured by `DORMOUSE_URL` (`http://127.0.0.1:7777` by default), `DORMOUSE_NAMESPACE` and
   * `DORMOUSE_TOKEN`.
   */
  static fromEnv(options: Partial<ClientOptions> = {}): Client {
    const { DORMOUSE_URL: url, DORMOUSE_NAMESPACE: namespace, DORMOUSE_TOKEN: token } = process.env;
    if (!namespace && !options.namespace) throw invalid("new client", "DORMOUSE_NAMESPACE is not set");
    return new Client({ url: url || "http://127.0.0.1:7777", namespace: namespace ?? "", token: token ?? "", ...options });
  }

  /** Closes idle connections. They do not keep a program alive. */
  close(): void {
    this.#connections?.close();
  }

  /** Stores a job. */
  async publish(queue: string, data: Data, options: PublishOptions = {}): Promise<Published> {
    const { idempotencyKey = randomKey(), signal } = options;
    const op = `publish ${queue}`;
    if (!/^.{1,255}$/s.test(idempotencyKey) || !printable(idempotencyKey)) {
      throw invalid(op, "an idempotency key has 1 to 255 characters of printable ASCII");
    }
    const message = new Message(op, data, options);
    if (!message.fitsHeaders) {
      try {
        const [published] = await this.#batch(queue, [message.element], idempotencyKey, signal);
        return published as Published;
      } catch (error) {
        throw error instanceof DormouseError ? error.with({ index: undefined }) : error;
      }
    }
    return this.#caller.call(
      {
        op, method: "POST", queues: [queue], path: ["jobs"], query: message.query, headers: message.headers,
        body: message.data, idempotencyKey, repeat: true, signal,
      },
      (body, headers) => publishedOf(object(body), headers),
    );
  }

  /** Stores a job whose body is the value as JSON. */
  async publishJSON(queue: string, value: unknown, options: PublishOptions = {}): Promise<Published> {
    return this.publish(queue, jsonText(`publish ${queue}`, value), options);
  }

  /**
   * Stores any number of jobs in order, in batches. Each batch is stored completely or not at all. An error has the
   * jobs stored before in `published`, and in `index` the position of the job that it is about.
   */
  async publishMany(queue: string, jobs: Iterable<NewJob>, { signal }: CallOptions = {}): Promise<Published[]> {
    const op = `publish ${queue}`;
    const elements = [...jobs].map((job, index) => {
      try {
        const data = job.data !== undefined ? job.data : jsonText(op, job.json);
        return new Message(op, data, job).element;
      } catch (error) {
        throw error instanceof DormouseError ? error.with({ index, published: [] }) : error;
      }
    });
    const published: Published[] = [];
    for (let start = 0; start < elements.length; ) {
      let size = 1; // of the body: brackets, and a comma between two
      let end = start;
      while (end < elements.length && end - start < BATCH_JOBS) {
        const more = (elements[end] as Buffer).length + 1;
        if (end > start && size + more > BATCH_BYTES) break;
        size += more;
        end++;
      }
      try {
        published.push(...(await this.#batch(queue, elements.slice(start, end), randomKey(), signal)));
      } catch (error) {
        if (!(error instanceof DormouseError)) throw error;
        throw error.with({ published, index: error.index === undefined ? undefined : error.index + start });
      }
      start = end;
    }
    return published;
  }

  #batch(queue: string, elements: Buffer[], idempotencyKey: string, signal: AbortSignal | undefined): Promise<Published[]> {
    const body = Buffer.from(`[${elements.map((element) => element.toString()).join(",")}]`);
    return this.#caller.call(
      {
        op: `publish ${queue}`, method: "POST", queues: [queue], path: ["jobs", "batch"], body, idempotencyKey,
        repeat: true, signal,
      },
      (answer, headers) => {
        const published = list(object(answer).jobs, (one) => publishedOf(object(one), headers));
        if (published.length === elements.length) return published;
        throw new Error(`${elements.length} jobs were sent, and ${published.length} answered`);
      },
    );
  }

  /**
   * Takes jobs from queues, with receipts; none if no job came in time. It is not retried after a lost reply. Most
   * programs should use a worker instead.
   */
  async consume(queues: string | readonly string[], options: ConsumeOptions = {}): Promise<HeldJob[]> {
    return consume(this.#caller, consumeAsk(queues, options), options.ttr);
  }

  /** Acks jobs of one queue, any number of them. */
  async ackMany(queue: string, jobs: readonly HeldJob[], { signal }: CallOptions = {}): Promise<Acked> {
    const stray = jobs.findIndex((job) => job.queue !== queue);
    if (stray >= 0) throw notConsumed(`ack ${queue}`, stray);
    const all: Acked = { acked: 0, stale: [] };
    for (let start = 0; start < jobs.length; start += MANY) {
      const some = jobs.slice(start, start + MANY);
      try {
        const { acked, stale } = await ackSome(this.#caller, queue, some, { signal });
        for (const job of some) if (!stale.includes(job.id)) holdOf(job).outcome = "acked";
        all.acked += acked;
        all.stale.push(...stale);
      } catch (error) {
        if (!(error instanceof DormouseError) || error.index === undefined) throw error;
        throw error.with({ index: error.index + start });
      }
    }
    return all;
  }

  /** Looks up a job. */
  async get(queue: string, id: string, options: CallOptions = {}): Promise<JobInfo> {
    return this.#look(queue, ["job", id], (answer) => new JobInfo(answer), options);
  }

  /** Looks up the job with the key. */
  async getByKey(queue: string, key: string, options: CallOptions = {}): Promise<JobInfo> {
    return this.#look(queue, ["key", key], (answer) => new JobInfo(answer), options);
  }

  /** Returns the job that the next consume would get, if there is one. */
  async peek(queue: string, options: CallOptions = {}): Promise<Job | undefined> {
    try {
      return await this.#look(queue, ["peek"], (answer) => new Job(answer), options);
    } catch (error) {
      if (error instanceof DormouseError && error.type === "not_found" && error.message === "the queue is empty") return undefined;
      throw error;
    }
  }

  #look<T>(queue: string, path: string[], read: (answer: Answer) => T, { signal }: CallOptions): Promise<T> {
    const ask: Ask = { op: `look ${queue}`, method: "GET", queues: [queue], path, query: { verbose: "1" }, repeat: true, signal };
    return this.#caller.call(ask, (body) => read(object(body)));
  }

  /** Deletes a job, in any state. Succeeds if there is no such job. */
  async cancel(queue: string, id: string, { signal }: CallOptions = {}): Promise<void> {
    await this.#caller.done({ op: `cancel ${queue}`, method: "DELETE", queues: [queue], path: ["job", id], repeat: true, signal });
  }

  /** Deletes the job with the key; `not_found` if there is none. */
  async cancelByKey(queue: string, key: string, { signal }: CallOptions = {}): Promise<void> {
    await this.#caller.done({ op: `cancel ${queue}`, method: "DELETE", queues: [queue], path: ["key", key], repeat: true, goneIsDone: true, signal });
  }

  /** Makes a delayed job ready now, after other ready jobs; `conflict` if it is not delayed. */
  async promote(queue: string, id: string, options: CallOptions = {}): Promise<void> {
    await this.#promote(queue, ["job", id, "promote"], options);
  }

  /** Makes the delayed job with the key ready now; `not_found` if no job has it. */
  async promoteByKey(queue: string, key: string, options: CallOptions = {}): Promise<void> {
    await this.#promote(queue, ["key", key, "promote"], options);
  }

  async #promote(queue: string, path: string[], { signal }: CallOptions): Promise<void> {
    await this.#caller.call({ op: `promote ${queue}`, method: "POST", queues: [queue], path, signal }, object);
  }

  /** Stops deliveries from the queue: for `howLong` seconds, or until {@link resume}. Returns when the pause ends. */
  async pause(queue: string, howLong?: number, { signal }: CallOptions = {}): Promise<Date | undefined> {
    const op = `pause ${queue}`;
    const query: Query = howLong === undefined ? {} : { for: seconds(op, "the duration", howLong) };
    const ask: Ask = { op, method: "POST", queues: [queue], path: ["pause"], query, repeat: true, signal };
    return this.#caller.call(ask, (body) => instant(object(body), "until"));
  }

  /** Ends a pause. */
  async resume(queue: string, { signal }: CallOptions = {}): Promise<void> {
    await this.#caller.call(
      { op: `resume ${queue}`, method: "POST", queues: [queue], path: ["resume"], repeat: true, signal }, object,
    );
  }

  /** Returns the number of ready jobs. */
  async size(queue: string, { signal }: CallOptions = {}): Promise<number> {
    const ask: Ask = { op: `size ${queue}`, method: "GET", queues: [queue], path: ["size"], repeat: true, signal };
    return this.#caller.call(ask, (body) => number(object(body), "size"));
  }

  /** Deletes the ready jobs of the queue. */
  async destroy(queue: string, { signal }: CallOptions = {}): Promise<void> {
    await this.#caller.done({ op: `destroy ${queue}`, method: "DELETE", queues: [queue], signal });
  }

  /** Returns the size and the oldest job of the queue's dead letter. {@link jobs} lists its jobs. */
  async deadLetter(queue: string, { signal }: CallOptions = {}): Promise<DeadLetter> {
    const ask: Ask = { op: `dead letter ${queue}`, method: "GET", queues: [queue], path: ["deadletter"], repeat: true, signal };
    return this.#caller.call(ask, (body) => {
      const answer = object(body);
      return { size: number(answer, "deadletter_size"), head: optional(answer, "deadletter_head") };
    });
  }

  /** Makes dead jobs ready again, any number of them. */
  async respawn(queue: string, ids: readonly string[], options: RespawnOptions = {}): Promise<Respawned> {
    const op = `respawn ${queue}`;
    const { tries, delay, ttl, signal } = options;
    const given = { ...(tries !== undefined && { tries }), ...(delay !== undefined && { delay }), ...(ttl !== undefined && { ttl }) };
    const { query } = new Message(op, "", given);
    const all: Respawned = { respawned: 0, missing: [] };
    for (let start = 0; start < ids.length; start += MANY) {
      const body = Buffer.from(JSON.stringify({ jobs: ids.slice(start, start + MANY) }));
      const ask: Ask = { op, method: "POST", queues: [queue], path: ["deadletter", "respawn"], query, body, signal };
      await this.#caller.call(ask, (answered) => {
        const answer = object(answered);
        all.respawned += number(answer, "respawned");
        all.missing.push(...list(answer.missing, string));
      });
    }
    return all;
  }

  /** Makes the oldest dead jobs ready again, with one try each, and returns how many. `ttl` is in whole seconds. */
  async respawnOldest(queue: string, most: number, options: CallOptions & { ttl?: number } = {}): Promise<number> {
    const op = `respawn ${queue}`;
    const query: Query = { limit: String(most) };
    if (options.ttl !== undefined) query.ttl = wholeSeconds(op, "ttl", options.ttl);
    const ask: Ask = { op, method: "PUT", queues: [queue], path: ["deadletter"], query, signal: options.signal };
    return this.#caller.call(ask, (body) => number(object(body), "count"));
  }

  /** Deletes up to `most` of the oldest dead jobs. */
  async deleteDead(queue: string, most: number, { signal }: CallOptions = {}): Promise<void> {
    const ask: Ask = { op: `delete dead ${queue}`, method: "DELETE", queues: [queue], path: ["deadletter"], signal };
    await this.#caller.done({ ...ask, query: { limit: String(most) } });
  }

  /** Lists the queues of the namespace, reading pages as needed. */
  queues({ signal }: CallOptions = {}): AsyncGenerator<QueueInfo, void, undefined> {
    return this.#pages({ op: "list queues", method: "GET", queues: [], signal }, "queues", (answer) => ({
      queue: text(answer, "queue"),
      ready: figure(answer, "ready"),
      delayed: figure(answer, "delayed"),
      running: figure(answer, "running"),
      dead: figure(answer, "dead"),
      oldestReadyAge: figure(answer, "oldest_ready_age"),
      paused: answer.paused === true,
      pausedUntil: instant(answer, "paused_until"),
    }));
  }

  /** Lists the jobs of a queue in one state, in order of delivery; dead ones oldest first. `data` includes bodies. */
  jobs(queue: string, state: State, options: CallOptions & { data?: boolean } = {}): AsyncGenerator<ListedJob, void, undefined> {
    const query: Query = { state };
    if (options.data) query.data = "1";
    const ask: Ask = { op: `list ${queue}`, method: "GET", queues: [queue], path: ["jobs"], query, signal: options.signal };
    return this.#pages(ask, "jobs", (answer) => ({
      id: text(answer, "job_id"),
      state: text(answer, "state") as State,
      dueAt: instant(answer, "due_at"),
      publishedAt: instant(answer, "published_at"),
      remainTries: number(answer, "remain_tries"),
      ttl: number(answer, "ttl"),
      key: optional(answer, "key"),
      reason: optional(answer, "reason"),
      size: number(answer, "size"),
      data: options.data ? Buffer.from(optional(answer, "data") ?? "", "base64") : undefined,
      attributes: options.data ? attributesOf(answer) : undefined,
    }));
  }

  async *#pages<T>(ask: Ask, name: string, each: (answer: Answer) => T): AsyncGenerator<T, void, undefined> {
    let cursor: string | undefined;
    do {
      const query: Query = { ...ask.query, limit: "100", ...(cursor !== undefined && { cursor }) };
      const page = await this.#caller.call({ ...ask, query, repeat: true }, (body) => {
        const answer = object(body);
        return { values: list(answer[name], (one) => each(object(one))), cursor: optional(answer, "cursor") };
      });
      yield* page.values;
      cursor = page.cursor;
    } while (cursor !== undefined);
  }
}

function publishedOf(answer: Answer, headers: { get(name: string): string | null }): Published {
  return {
    jobId: text(answer, "job_id"),
    dueAt: instant(answer, "due_at"),
    duplicate: answer.duplicate === true,
    replaced: optional(answer, "replaced"),
    replayed: headers.get("idempotency-replayed") === "true",
  };
}

function figure(answer: Answer, name: string): number | undefined {
  return typeof answer[name] === "number" ? (answer[name] as number) : undefined;
}

// The following methods are for workers too.

/** @internal */
export function consumeAsk(queues: string | readonly string[], options: ConsumeOptions): Ask {
  const names = typeof queues === "string" ? [queues] : [...queues];
  const op = `consume ${names.join(",")}`;
  const { count, ttr, timeout = 0, weights, signal } = options;
  if (names.length === 0) throw invalid(op, "no queue is given");
  const query: Query = { receipt: "1", timeout: wholeSeconds(op, "timeout", timeout) };
  if (ttr !== undefined) query.ttr = wholeSeconds(op, "ttr", ttr);
  if (count !== undefined) query.count = String(count);
  if (weights !== undefined) query.weights = weights.join(",");
  return { op, method: "GET", queues: names, query, signal, waits: (Math.ceil(timeout) + 1) * 1000 };
}

/** Returns no jobs if none came in time; `ttr` is in seconds. @internal */
export async function consume(caller: Caller, ask: Ask, ttr: number | undefined): Promise<HeldJob[]> {
  let came = 0;
  const heard = (): void => {
    came = caller.clock.now();
    ask.heard?.();
  };
  try {
    return await caller.call({ ...ask, heard }, (body) => {
      const all = Array.isArray(body) ? body.map(object) : [object(body)];
      if (all.length === 0) throw new Error("it has no job");
      return all.map((answer) => {
        text(answer, "job_id");
        const receipt = optional(answer, "receipt");
        if (receipt !== undefined) return new HeldJob(caller, answer, receipt, came + Math.ceil(ttr ?? 0) * 1000);
        throw new DormouseError("unsupported", ask.op, "the server gives no receipts", { status: 200 });
      });
    });
  } catch (error) {
    if (error instanceof DormouseError && error.status === 404 && error.message === "no job available") return [];
    throw error;
  }
}

/** Acks at most 100 jobs of a queue; a single one by its own route. @internal */
export async function ackSome(
  caller: Caller, queue: string, jobs: readonly HeldJob[], bounds: Bounds & { signal?: AbortSignal | undefined } = {},
): Promise<Acked> {
  const [first] = jobs;
  if (jobs.length === 1 && first) {
    try {
      await holdOf(first).ack(bounds);
    } catch (error) {
      if (error instanceof DormouseError && error.type === "lost") return { acked: 0, stale: [first.id] };
      throw error;
    }
    return { acked: 1, stale: [] };
  }
  const body = Buffer.from(JSON.stringify({ jobs: jobs.map((job) => ({ id: job.id, receipt: holdOf(job).receipt })) }));
  const ask: Ask = { op: `ack ${queue}`, method: "POST", queues: [queue], path: ["ack"], body, repeat: true, ...bounds };
  return caller.call(ask, (answered) => {
    const answer = object(answered);
    return { acked: number(answer, "acked"), stale: list(answer.stale, string) };
  });
}
