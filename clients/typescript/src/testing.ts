/**
 * An in-process Dormouse for tests: it responds to the real client and the real worker like a server, with a clock that
 * only the test moves. store.ts has its jobs, routes.ts its routes.
 */

import { setImmediate } from "node:timers/promises";
import { Client, type ClientOptions } from "./client.js";
import { type Call, isPoll, parse, readPoll, Refusal, type Reply, Routes } from "./routes.js";
import { Store } from "./store.js";
import type { Fetch, Incoming, Outgoing } from "./transport.js";

/** An in-process server. `worker.runUntilIdle()` handles the jobs that are due, and returns. */
export class Double {
  readonly #store = new Store();
  readonly #routes = new Routes(this.#store);
  /** Waiting polls: each checks again when called. */
  readonly #waiting = new Set<() => void>();
  #requests = 0;

  /** Time of the server's clock. */
  get now(): Date {
    return new Date(this.#store.now);
  }

  /**
   * Moves the clock by some seconds: due jobs become ready, jobs that were not acked in time are redelivered, and polls
   * whose timeout has passed are answered.
   */
  advance(seconds: number): void {
    this.#store.now += Math.round(seconds * 1000);
    this.#wake();
  }

  /** Returns a client of this server. */
  client(options: Partial<ClientOptions> = {}): Client {
    return new Client({ url: "http://double", namespace: "double", fetch: this.fetch, ...options });
  }

  /** Answers a request: the `fetch` of clients. */
  readonly fetch: Fetch = async (url, init) => {
    await setImmediate(); // no answer of a server comes at once
    init.signal.throwIfAborted();
    let reply: Reply;
    try {
      const call = parse(url, init.method, init.headers, init.body);
      if (isPoll(call)) {
        reply = await this.#poll(call, init);
      } else {
        this.#store.upkeep();
        reply = this.#routes.answer(call);
        this.#wake();
      }
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      reply = { status: error.status, body: error.body };
    }
    return this.#incoming(reply);
  };

  #incoming({ status, body, replayed }: Reply): Incoming {
    const headers = new Map([["x-request-id", `double-${++this.#requests}`]]);
    if (replayed) headers.set("idempotency-replayed", "true");
    return {
      status,
      headers: { get: (name) => headers.get(name.toLowerCase()) ?? null },
      arrayBuffer: async () => Buffer.from(body === undefined ? "" : JSON.stringify(body)),
    };
  }

  /** Waits for jobs: until the clock is moved, or in real time, so that a worker's polls end. */
  #poll(call: Call, { signal, leave }: Outgoing): Promise<Reply> {
    const poll = readPoll(call);
    const end = this.#store.now + poll.timeout;
    return new Promise((resolve, reject) => {
      const done = (): void => {
        this.#waiting.delete(look);
        clearTimeout(timer);
        signal.removeEventListener("abort", cut);
        leave?.removeEventListener("abort", nothing);
      };
      const nothing = (): void => {
        done();
        resolve({ status: 404, body: { msg: "no job available" } });
      };
      const cut = (): void => {
        done();
        reject(signal.reason as Error);
      };
      const look = (): void => {
        this.#store.upkeep();
        const jobs = this.#store.handOut(poll).map((job) => ({
          msg: "new job", ...this.#routes.shown(job), ...(poll.receipts && { receipt: job.receipt }),
        }));
        if (jobs.length > 0) {
          done();
          resolve({ status: 200, body: poll.many ? jobs : jobs[0] });
        } else if (this.#store.now >= end) {
          nothing();
        }
      };
      const timer = setTimeout(nothing, Math.min(poll.timeout, 2 ** 31 - 1));
      signal.addEventListener("abort", cut);
      leave?.addEventListener("abort", nothing);
      this.#waiting.add(look);
      look();
    });
  }

  #wake(): void {
    for (const look of [...this.#waiting]) look();
  }
}
