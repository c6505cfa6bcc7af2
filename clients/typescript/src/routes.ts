/** The routes of the test double: those that the client uses. store.ts has the jobs. */

import type { State } from "./job.js";
import { holder, inState, order, type Poll, type Store, type StoredJob, type StoredQueue } from "./store.js";

/** A request with valid names. @internal */
export interface Call {
  method: string;
  namespace: string;
  /** Or several, for a consume. */
  queue: string;
  /** The path below the queue. */
  rest: string[];
  query: URLSearchParams;
  /** By lower-case name. */
  headers: ReadonlyMap<string, string>;
  body: Buffer;
}

/** JSON, or empty with a 204. @internal */
export interface Reply {
  status: number;
  body?: unknown;
  replayed?: boolean;
}

type Fields = Record<string, unknown>;

/** Thrown to reject a request. @internal */
export class Refusal extends Error {
  constructor(readonly status: number, readonly body: Fields) {
    super(String(body.error));
  }
}

function refuse(status: number, error: string, more: Fields = {}): never {
  throw new Refusal(status, { error, ...more });
}

const MAX_JOB = 1024 * 1024;
const MAX_REASON = 4096;
const MAX_SECONDS = 2 ** 32 - 1;
const DAY = 86_400_000;
const DEFAULT_TTR = 120_000;
const REMEMBERED = 600_000;

const NO_CONTENT: Reply = { status: 204 };

function ok(body: Fields): Reply {
  return { status: 200, body };
}

/** @internal */
export function parse(url: string, method: string, headers: Record<string, string>, body: Uint8Array | undefined): Call {
  const [address = "", query = ""] = url.split("?", 2);
  const path = address.slice(address.indexOf("/api/") + "/api/".length);
  const [namespace = "", queue = "", ...rest] = path.split("/").map(decodeURIComponent);
  for (const name of [namespace, ...queue.split(",")]) {
    if (name.length > 255) refuse(400, "namespace or queue name too long");
    if (!/^[A-Za-z0-9_-]*$/.test(name)) refuse(400, "queue name contains forbidden characters");
  }
  return {
    method, namespace, queue, rest, query: new URLSearchParams(query),
    headers: new Map(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value])),
    body: body ? Buffer.from(body) : Buffer.alloc(0),
  };
}

/** @internal */
export function isPoll(call: Call): boolean {
  return call.method === "GET" && call.queue !== "" && call.rest.length === 0;
}

/** Parses the parameters of a consume. `many`: the reply is an array. @internal */
export function readPoll({ namespace, queue, query }: Call): Poll & { many: boolean } {
  const queues = queue.split(",");
  if (queues.length > 100) refuse(400, "too many queues");
  const count = whole(query, "count", 1, 1, 100);
  const weights = query.get("weights")?.split(",").map(Number);
  if (weights && (weights.length !== queues.length || !weights.every((w) => Number.isInteger(w) && w >= 1 && w <= 1000))) {
    refuse(400, "invalid weights");
  }
  return {
    namespace, queues, weights, count, many: count > 1, receipts: query.get("receipt") === "1",
    ttr: whole(query, "ttr", DEFAULT_TTR / 1000, 1, MAX_SECONDS) * 1000,
    timeout: whole(query, "timeout", 0, 0, MAX_SECONDS) * 1000,
  };
}

function whole(query: URLSearchParams, name: string, otherwise: number, least: number, most: number): number {
  const text = query.get(name);
  if (text === null) return otherwise;
  const n = /^\d+$/.test(text) ? Number(text) : NaN;
  return n >= least && n <= most ? n : refuse(400, `invalid ${name}`);
}

/** Parses seconds with up to three decimals, and returns milliseconds. */
function span(text: string | null | undefined, otherwise: number, name: string): number {
  if (text === null || text === undefined) return otherwise;
  if (!/^\d+(\.\d{0,3})?$/.test(text) || Number(text) > MAX_SECONDS) refuse(400, `invalid ${name}`);
  return Math.round(Number(text) * 1000);
}

function iso(ms: number | undefined): string | null {
  return ms === undefined ? null : new Date(ms).toISOString();
}

function validReceipt(receipt: string | null): receipt is string {
  return receipt !== null && /^\d{1,5}-\d{1,19}$/.test(receipt);
}

/** The description of a job in a publish. Numbers are kept as text. */
interface Wanted {
  data: Buffer;
  delay?: string | undefined;
  at?: string | undefined;
  at_ms?: string | undefined;
  ttl?: string | undefined;
  tries?: string | undefined;
  key?: string | undefined;
  on_conflict?: string | undefined;
  attributes: Record<string, string>;
}

const FIELDS = new Set(["data", "text", "delay", "at", "at_ms", "ttl", "tries", "key", "on_conflict", "attributes"]);

/** Handles all requests except polls. @internal */
export class Routes {
  /** Completed publishes, by namespace, queue and idempotency key. */
  readonly #answered = new Map<string, { request: string; reply: Reply; until: number }>();

  constructor(readonly store: Store) {}

  answer(call: Call): Reply {
    if (call.queue === "") return this.#listQueues(call);
    const queue = this.store.queue(call.namespace, call.queue);
    const named = call.rest[0] === "job" || call.rest[0] === "key";
    const route = [call.method, ...call.rest.map((part, i) => (i === 1 && named ? ":id" : part))].join(" ");
    const job = (): StoredJob => queue.jobs.get(call.rest[1] as string) ?? refuse(404, "job not found");
    const keeper = (): StoredJob => holder(queue, call.rest[1]) ?? refuse(404, "no job has this key");
    switch (route) {
      case "POST jobs": return this.#idempotent(call, () => this.#publish(call, queue));
      case "POST jobs batch": return this.#idempotent(call, () => this.#publishBatch(call, queue));
      case "GET job :id": return this.#show(call, job());
      case "GET key :id": return this.#show(call, keeper());
      case "GET peek": {
        const [next] = inState(queue, "ready");
        return next ? ok(this.shown(next)) : refuse(404, "the queue is empty");
      }
      case "DELETE job :id": return this.#ack(call, queue);
      case "DELETE key :id":
        queue.jobs.delete(keeper().id);
        return NO_CONTENT;
      case "POST job :id promote": return this.#promote(job());
      case "POST key :id promote": return this.#promote(keeper());
      case "POST job :id touch": case "POST job :id release": case "POST job :id bury": return this.#held(call, job);
      case "POST ack": return this.#ackMany(call, queue);
      case "POST pause": return this.#pause(call, queue);
      case "POST resume":
        Object.assign(queue, { paused: false, until: undefined });
        return ok({ msg: "resumed" });
      case "GET jobs": return this.#listJobs(call, queue);
      case "GET size": return ok({ namespace: call.namespace, queue: call.queue, size: inState(queue, "ready").length });
      case "DELETE":
        for (const { id } of inState(queue, "ready")) queue.jobs.delete(id);
        return NO_CONTENT;
      case "GET deadletter": {
        const dead = inState(queue, "dead");
        const { namespace, queue: name } = call;
        return ok({ namespace, queue: name, deadletter_size: dead.length, deadletter_head: dead[0]?.id ?? "" });
      }
      case "PUT deadletter": case "DELETE deadletter": return this.#oldestDead(call, queue);
      case "POST deadletter respawn": return this.#respawn(call, queue);
    }
    return refuse(404, "api not found");
  }

  #idempotent(call: Call, publish: () => Reply): Reply {
    const key = call.headers.get("idempotency-key");
    if (key === undefined) return publish();
    const name = JSON.stringify([call.namespace, call.queue, key]);
    const attributes = Object.entries(attributeHeaders(call)).sort();
    const request = JSON.stringify([call.rest, call.query.toString(), attributes, call.body.toString("base64")]);
    const before = this.#answered.get(name);
    if (before && before.until > this.store.now) {
      if (before.request !== request) refuse(422, "the idempotency key was used for another request");
      return { ...before.reply, replayed: true };
    }
    const reply = publish();
    this.#answered.set(name, { request, reply, until: this.store.now + REMEMBERED });
    return reply;
  }

  #publish(call: Call, queue: StoredQueue): Reply {
    if (call.body.length > MAX_JOB) refuse(413, "body too large");
    const wanted: Wanted = { data: call.body, attributes: attributeHeaders(call) };
    for (const name of ["delay", "at", "at_ms", "ttl", "tries", "key", "on_conflict"] as const) {
      const value = call.query.get(name);
      if (value !== null) wanted[name] = value;
    }
    const job = this.#prepare(call, wanted);
    return { status: 201, body: { msg: "published", ...this.#put(queue, job, wanted) } };
  }

  #publishBatch(call: Call, queue: StoredQueue): Reply {
    const all = json(call.body);
    if (!Array.isArray(all)) return refuse(400, "request body should be an array of jobs");
    if (all.length === 0) refuse(400, "no jobs");
    if (all.length > 64) refuse(400, "too many jobs");
    const keys = new Set<string>();
    const good = all.map((one: unknown, index) => {
      try {
        const wanted = wantedOf(call, one);
        const job = this.#prepare(call, wanted);
        if (job.key !== undefined && keys.has(job.key)) refuse(400, "two jobs with one key");
        if (job.key !== undefined) keys.add(job.key);
        if (wanted.on_conflict === "fail") free(queue, job);
        return { job, wanted };
      } catch (error) {
        if (error instanceof Refusal) throw new Refusal(error.status, { ...error.body, index });
        throw error;
      }
    });
    return { status: 201, body: { msg: "published", jobs: good.map(({ job, wanted }) => this.#put(queue, job, wanted)) } };
  }

  /** Creates a job that is not in the store yet. */
  #prepare(call: Call, wanted: Wanted): StoredJob {
    const { now } = this.store;
    if (wanted.data.length > MAX_JOB) refuse(413, "job too large");
    if ([wanted.delay, wanted.at, wanted.at_ms].filter((given) => given !== undefined).length > 1) {
      refuse(400, "only one of delay, at and at_ms can be given");
    }
    let delay = span(wanted.delay, 0, "delay");
    if (wanted.at_ms !== undefined) {
      if (!/^\d{1,15}$/.test(wanted.at_ms)) refuse(400, "invalid at_ms");
      delay = Number(wanted.at_ms) - now;
    }
    if (wanted.at !== undefined) {
      const at = /^[\d.]+$/.test(wanted.at) ? span(wanted.at, 0, "at") : Date.parse(wanted.at.replace(" ", "+"));
      if (Number.isNaN(at)) refuse(400, "invalid at");
      delay = at - now;
    }
    delay = Math.max(0, delay);
    const ttl = span(wanted.ttl, delay + DAY, "ttl");
    if (ttl > 0 && ttl < delay) refuse(400, "ttl is shorter than delay");
    if (ttl > 0 && ttl === delay) refuse(400, "ttl equals delay: the job would expire when it is due");
    const tries = wanted.tries === undefined ? 1 : /^\d{1,5}$/.test(wanted.tries) ? Number(wanted.tries) : NaN;
    if (tries === 0) refuse(400, "tries shouldn't be zero");
    if (!(tries <= 65535)) refuse(400, "invalid tries");
    if (wanted.key !== undefined && !/^[!-~]{1,255}$/.test(wanted.key)) refuse(400, "invalid key");
    if (!["keep", "replace", "fail"].includes(wanted.on_conflict ?? "keep")) refuse(400, "invalid on_conflict");
    if (Object.keys(wanted.attributes).length > 16) refuse(400, "too many attributes, cannot exceed 16");
    return {
      id: "", queue: call.queue, namespace: call.namespace, data: wanted.data, attributes: wanted.attributes,
      state: delay > 0 ? "delayed" : "ready", published: now, since: now + delay, place: 0,
      expires: ttl > 0 ? now + ttl : undefined, tries, key: wanted.key, reason: undefined, receipt: undefined,
    };
  }

  /** Stores a job, unless its key is taken. */
  #put(queue: StoredQueue, job: StoredJob, wanted: Wanted): Fields {
    const there = holder(queue, job.key);
    let replaced: string | undefined;
    if (there && wanted.on_conflict === "replace") {
      if (there.state === "running") {
        there.key = undefined;
      } else {
        queue.jobs.delete(there.id);
        replaced = there.id;
      }
    } else if (there) {
      if (wanted.on_conflict === "fail") free(queue, job);
      return { job_id: there.id, due_at: iso(there.since), duplicate: true };
    }
    job.place = this.store.number();
    job.id = this.store.id(job);
    queue.jobs.set(job.id, job);
    return { job_id: job.id, due_at: iso(job.since), ...(replaced !== undefined && { replaced }) };
  }

  /** Returns a job in the format of lmstfy's routes. */
  shown(job: StoredJob): Fields {
    return {
      attributes: Object.keys(job.attributes).length > 0 ? job.attributes : null, data: job.data.toString("base64"),
      elapsed_ms: this.store.now - job.published, job_id: job.id, namespace: job.namespace, queue: job.queue,
      remain_tries: job.tries, ttl: this.store.ttl(job),
    };
  }

  #show({ query }: Call, job: StoredJob): Reply {
    const shown = this.shown(job);
    if (query.get("verbose") !== "1") return ok({ ...shown, remain_tries: 0 });
    Object.assign(shown, { state: job.state, due_at: iso(job.since), key: job.key ?? null, reason: job.reason ?? null });
    const old = query.get("receipt");
    if (old !== null) {
      if (!validReceipt(old)) refuse(400, "invalid receipt");
      shown.receipt = job.state === "running" && old.split("-")[0] === String(job.tries) ? job.receipt : null;
    }
    return ok(shown);
  }

  #ack({ query, rest }: Call, queue: StoredQueue): Reply {
    const id = rest[1] as string;
    const receipt = query.get("receipt");
    if (receipt !== null && !validReceipt(receipt)) refuse(400, "invalid receipt");
    const job = queue.jobs.get(id);
    if (job && receipt !== null && job.receipt !== receipt) refuse(409, "the job is not yours any more");
    queue.jobs.delete(id);
    return NO_CONTENT;
  }

  #ackMany({ body }: Call, queue: StoredQueue): Reply {
    const jobs = (json(body) as { jobs?: unknown } | undefined)?.jobs;
    if (!Array.isArray(jobs) || jobs.length === 0) return refuse(400, "no jobs");
    if (jobs.length > 100) refuse(400, "too many jobs");
    const all = jobs.map((one: unknown, index) => {
      if (typeof one === "string") return { id: one };
      const { id, receipt } = (one ?? {}) as { id?: string; receipt?: string };
      if (id === undefined || !validReceipt(receipt ?? null)) return refuse(400, "invalid receipt", { index });
      return { id, receipt };
    });
    const stale: string[] = [];
    for (const { id, receipt } of all) {
      const job = queue.jobs.get(id);
      if (job && receipt !== undefined && job.receipt !== receipt) stale.push(id);
      else queue.jobs.delete(id);
    }
    return ok({ acked: all.length - stale.length, stale });
  }

  /** Does what a receipt is needed for. */
  #promote(job: StoredJob): Reply {
    if (job.state !== "delayed") refuse(409, "the job is not delayed", { state: job.state });
    Object.assign(job, { state: "ready", since: this.store.now, place: this.store.number() });
    return ok({ msg: "ready" });
  }

  #held({ query, rest, body }: Call, find: () => StoredJob): Reply {
    const receipt = query.get("receipt");
    if (!validReceipt(receipt)) refuse(400, "invalid receipt");
    const ttr = span(query.get("ttr"), DEFAULT_TTR, "ttr") || refuse(400, "invalid ttr");
    const delay = span(query.get("delay"), 0, "delay");
    const spend = query.get("spend") ?? "1";
    if (spend !== "0" && spend !== "1") refuse(400, "invalid spend");
    if (body.length > MAX_REASON) refuse(413, "reason too large");
    const job = find();
    if (job.receipt !== receipt) refuse(409, "the job is not yours any more");
    if (rest[2] === "touch") {
      this.store.hold(job, ttr);
      return ok({ msg: "touched", receipt: job.receipt, until: iso(job.since) });
    }
    if (body.length > 0) job.reason = body.toString();
    if (spend === "0") job.tries++;
    const expires = job.expires !== undefined && job.expires <= this.store.now + delay;
    if (rest[2] === "bury" || job.tries === 0 || expires) {
      this.store.die(job, this.store.now);
      return ok({ msg: "dead" });
    }
    this.store.giveBack(job, delay);
    return ok({ msg: "released", remain_tries: job.tries, due_at: iso(job.since) });
  }

  #pause({ query }: Call, queue: StoredQueue): Reply {
    const howLong = span(query.get("for"), 0, "for");
    Object.assign(queue, { paused: true, until: howLong > 0 ? this.store.now + howLong : undefined });
    return ok({ msg: "paused", until: iso(queue.until) });
  }

  #listQueues({ namespace, query }: Call): Reply {
    const limit = whole(query, "limit", 100, 1, 100);
    const after = query.get("cursor") ?? "";
    const queues = [...this.store.queues(namespace)]
      .filter(([name, queue]) => name > after && (queue.jobs.size > 0 || queue.paused))
      .sort(([a], [b]) => (a < b ? -1 : 1));
    const shown = queues.slice(0, limit).map(([queue, stored]) => {
      const [ready, delayed, running, dead] = (["ready", "delayed", "running", "dead"] as const).map((s) => inState(stored, s));
      const [first] = ready as StoredJob[];
      return {
        queue, ready: ready?.length, delayed: delayed?.length, running: running?.length, dead: dead?.length,
        oldest_ready_age: first ? (this.store.now - first.since) / 1000 : null, paused: stored.paused,
        ...(stored.paused && stored.until !== undefined && { paused_until: iso(stored.until) }),
      };
    });
    return ok({ namespace, queues: shown, cursor: queues.length > limit ? shown[limit - 1]?.queue : null });
  }

  #listJobs({ query }: Call, queue: StoredQueue): Reply {
    const state = (query.get("state") ?? "ready") as State;
    if (!["ready", "delayed", "running", "dead"].includes(state)) refuse(400, "invalid state");
    const limit = whole(query, "limit", 20, 1, 100);
    const cursor = query.get("cursor");
    let jobs = inState(queue, state);
    if (cursor !== null) {
      const last = /^(\d+)_(-?\d+)$/.exec(cursor) ?? refuse(400, "invalid cursor");
      const before = { state, since: Number(last[1]), place: Number(last[2]) } as StoredJob;
      jobs = jobs.filter((job) => order(before, job) < 0);
    }
    const page = jobs.slice(0, limit).map((job) => ({
      job_id: job.id, state, due_at: iso(job.since), published_at: iso(job.published), remain_tries: job.tries,
      ttl: this.store.ttl(job), key: job.key ?? null, reason: job.reason ?? null, size: job.data.length,
      ...(query.get("data") === "1" && { data: job.data.toString("base64"), attributes: this.shown(job).attributes }),
    }));
    const last = jobs.length > limit ? jobs[limit - 1] : undefined;
    return ok({ jobs: page, cursor: last ? `${last.since}_${last.place}` : null, scanned: page.length });
  }

  #oldestDead({ method, query }: Call, queue: StoredQueue): Reply {
    const limit = whole(query, "limit", 1, 0, 2 ** 31 - 1);
    const ttl = span(query.get("ttl"), DAY, "ttl");
    const jobs = inState(queue, "dead").slice(0, limit);
    if (method === "DELETE") {
      for (const { id } of jobs) queue.jobs.delete(id);
      return NO_CONTENT;
    }
    for (const job of jobs) this.#again(job, 1, 0, ttl);
    return ok({ msg: "respawned", count: jobs.length });
  }

  #respawn(call: Call, queue: StoredQueue): Reply {
    const ids = (json(call.body) as { jobs?: unknown } | undefined)?.jobs;
    if (!Array.isArray(ids) || ids.length === 0) return refuse(400, "no jobs");
    if (ids.length > 100) refuse(400, "too many jobs");
    const wanted: Wanted = { data: Buffer.alloc(0), attributes: {} };
    for (const name of ["delay", "ttl", "tries"] as const) wanted[name] = call.query.get(name) ?? undefined;
    const { tries, since, expires } = this.#prepare(call, wanted);
    const { now } = this.store;
    const missing: string[] = [];
    for (const id of ids as string[]) {
      const job = queue.jobs.get(id);
      if (job?.state === "dead") this.#again(job, tries, since - now, expires === undefined ? 0 : expires - now);
      else missing.push(id);
    }
    return ok({ respawned: ids.length - missing.length, missing });
  }

  #again(job: StoredJob, tries: number, delay: number, ttl: number): void {
    const { now } = this.store;
    const state = delay > 0 ? "delayed" : "ready";
    const expires = ttl > 0 ? now + ttl : undefined;
    Object.assign(job, { state, since: now + delay, place: this.store.number(), tries, expires });
  }
}

function json(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString());
  } catch {
    return undefined;
  }
}

function attributeHeaders({ headers }: Call): Record<string, string> {
  if (headers.get("enable-job-version")?.toLowerCase() !== "yes") return {};
  const named = [...headers].filter(([name]) => name.startsWith("job-attr-"));
  return Object.fromEntries(named.map(([name, value]) => [name.slice("job-attr-".length), value]));
}

/** Parses one job of a batch. */
function wantedOf(call: Call, one: unknown): Wanted {
  if (typeof one !== "object" || one === null || Object.keys(one).some((name) => !FIELDS.has(name))) {
    return refuse(400, "request body should be an array of jobs");
  }
  const { data, text, attributes, ...rest } = one as Fields;
  const wanted: Wanted = {
    data: typeof text === "string" ? Buffer.from(text) : Buffer.from(String(data ?? ""), "base64"),
    attributes: (attributes as Record<string, string> | undefined) ?? attributeHeaders(call),
  };
  for (const [name, value] of Object.entries(rest)) Object.assign(wanted, { [name]: String(value) });
  return wanted;
}

/** Rejects a taken key. */
function free(queue: StoredQueue, job: StoredJob): void {
  const there = holder(queue, job.key);
  if (there) refuse(409, "the key is taken", { job_id: there.id });
}
