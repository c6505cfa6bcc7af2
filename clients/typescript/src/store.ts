/** The jobs of the test double, and its clock. routes.ts has the requests. Instants are Unix milliseconds. */

import type { State } from "./job.js";

/** @internal */
export interface StoredJob {
  id: string;
  queue: string;
  namespace: string;
  data: Buffer;
  attributes: Record<string, string>;
  state: State;
  published: number;
  /** When it is or became ready, when its delivery ends, or when it died. */
  since: number;
  /** Order among jobs of one state and instant; for ready jobs, their order. */
  place: number;
  /** Undefined is never. */
  expires: number | undefined;
  /** Tries left. */
  tries: number;
  key: string | undefined;
  reason: string | undefined;
  /** Of the current delivery. */
  receipt: string | undefined;
}

/** @internal */
export interface StoredQueue {
  jobs: Map<string, StoredJob>;
  paused: boolean;
  /** Of the pause; undefined if it does not end by itself. */
  until: number | undefined;
}

/** Parameters of a consume. @internal */
export interface Poll {
  namespace: string;
  queues: string[];
  weights: number[] | undefined;
  count: number;
  receipts: boolean;
  /** In milliseconds. */
  ttr: number;
  timeout: number;
}

/** Number of doubles in the process: no two create the same ids. */
let doubles = 0;

/** @internal */
export class Store {
  now = Date.now();
  readonly #double = ++doubles;
  readonly #namespaces = new Map<string, Map<string, StoredQueue>>();
  /** Amounts owed to each queue, by the list of queues and weights. */
  readonly #shares = new Map<string, number[]>();
  #numbers = 0;
  /** Positions before all others. */
  #heads = 0;

  number(): number {
    return ++this.#numbers;
  }

  /** Returns the id of a job, as long as a server's; with attributes it has a mark, like a server's. */
  id(job: StoredJob): string {
    const mark = Object.keys(job.attributes).length > 0 ? "1" : "";
    return `${mark}01DOUBLE${String(this.#double).padStart(6, "0")}${String(job.place).padStart(12, "0")}`;
  }

  queues(namespace: string): Map<string, StoredQueue> {
    let queues = this.#namespaces.get(namespace);
    if (!queues) this.#namespaces.set(namespace, (queues = new Map()));
    return queues;
  }

  queue(namespace: string, name: string): StoredQueue {
    const queues = this.queues(namespace);
    let queue = queues.get(name);
    if (!queue) queues.set(name, (queue = { jobs: new Map(), paused: false, until: undefined }));
    return queue;
  }

  /** Executes everything that is due, in order of time. */
  upkeep(): void {
    for (const queues of this.#namespaces.values()) {
      for (const queue of queues.values()) {
        if (queue.paused && queue.until !== undefined && queue.until <= this.now) queue.paused = false;
        for (const job of queue.jobs.values()) {
          if (job.expires !== undefined && job.expires <= this.now && job.state !== "dead") queue.jobs.delete(job.id);
        }
        const waiting = [...queue.jobs.values()].filter(({ state }) => state === "delayed" || state === "running");
        for (const job of waiting.filter(({ since }) => since <= this.now).sort(order)) {
          if (job.tries === 0) this.die(job, job.since);
          else Object.assign(job, { state: "ready", place: this.number(), receipt: undefined });
        }
      }
    }
  }

  die(job: StoredJob, at: number): void {
    Object.assign(job, {
      state: "dead", since: at, place: this.number(), tries: 0, key: undefined, receipt: undefined, expires: undefined,
    });
  }

  /** Gives a job a new receipt: the number of tries left, and a unique number. */
  hold(job: StoredJob, ttr: number): void {
    const place = this.number();
    Object.assign(job, { state: "running", since: this.now + ttr, place, receipt: `${job.tries}-${place}` });
  }

  /** Makes a job ready after `delay` milliseconds; without a delay at the head. */
  giveBack(job: StoredJob, delay: number): void {
    const [state, place] = delay > 0 ? (["delayed", this.number()] as const) : (["ready", --this.#heads] as const);
    Object.assign(job, { state, since: this.now + delay, place, receipt: undefined });
  }

  handOut(poll: Poll): StoredJob[] {
    const jobs: StoredJob[] = [];
    while (jobs.length < poll.count) {
      const job = this.#next(poll);
      if (!job) break;
      job.tries--;
      this.hold(job, poll.ttr);
      jobs.push(job);
    }
    return jobs;
  }

  #next({ namespace, queues, weights }: Poll): StoredJob | undefined {
    const heads = queues.map((name) => {
      const queue = this.queues(namespace).get(name);
      return queue && !queue.paused ? inState(queue, "ready")[0] : undefined;
    });
    if (!weights) return heads.find((job) => job !== undefined);
    // The queue that is owed most is next.
    const name = JSON.stringify([namespace, queues, weights]);
    const owed = this.#shares.get(name) ?? queues.map(() => 0);
    this.#shares.set(name, owed);
    let total = 0;
    let best = -1;
    for (const [i, weight] of weights.entries()) {
      if (!heads[i]) continue;
      owed[i] = (owed[i] ?? 0) + weight;
      total += weight;
      if (best < 0 || (owed[i] ?? 0) > (owed[best] ?? 0)) best = i;
    }
    if (best < 0) return undefined;
    owed[best] = (owed[best] ?? 0) - total;
    return heads[best];
  }

  /** Returns seconds, rounded, at least 1; 0 is forever. */
  ttl(job: StoredJob): number {
    return job.expires === undefined ? 0 : Math.max(1, Math.round((job.expires - this.now) / 1000));
  }
}

/** Compares jobs of one state by their order of delivery. @internal */
export function order(a: StoredJob, b: StoredJob): number {
  return (a.state === "ready" ? 0 : a.since - b.since) || a.place - b.place;
}

/** @internal */
export function inState(queue: StoredQueue, state: State): StoredJob[] {
  return [...queue.jobs.values()].filter((job) => job.state === state).sort(order);
}

/** Returns the job with the key. @internal */
export function holder(queue: StoredQueue, key: string | undefined): StoredJob | undefined {
  return key === undefined ? undefined : [...queue.jobs.values()].find((job) => job.key === key);
}
