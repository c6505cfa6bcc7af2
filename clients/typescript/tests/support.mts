/** What tests share: a clock that they move, a server of a few lines, and a log. */

import { setImmediate } from "node:timers/promises";
import { Client, type ClientOptions, type Incoming, type Logger, type Outgoing } from "dormouse-client";

/** A clock that stands until the test moves it. */
export class FakeClock {
  #now = 1000;
  readonly #timers = new Set<{ at: number; call: () => void }>();

  readonly now = (): number => this.#now;

  readonly after = (ms: number, call: () => void): (() => void) => {
    const timer = { at: this.#now + ms, call };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  };

  get waiting(): number {
    return this.#timers.size;
  }

  /** Calls what falls due within so many milliseconds, each at its time, and lets promises go on between. */
  async advance(ms: number): Promise<void> {
    const end = this.#now + ms;
    for (;;) {
      await settled();
      const [next] = [...this.#timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at);
      if (!next) break;
      this.#timers.delete(next);
      this.#now = Math.max(this.#now, next.at);
      next.call();
    }
    this.#now = end;
    await settled();
  }

  /** As when the event loop hangs: the time has passed, and only then timers are called. */
  async hang(ms: number): Promise<void> {
    await settled();
    this.#now += ms;
    await this.advance(0);
  }
}

/** Lets everything go on that waits for nothing but its turn. */
export async function settled(): Promise<void> {
  for (let i = 0; i < 20; i++) await setImmediate();
}

/** A request as it was sent. */
export interface Sent extends Outgoing {
  at: number;
  url: string;
  path: string;
  query: URLSearchParams;
  /** By its verb: the last part of the path that is no id. */
  text: string;
}

export type Answering = { status: number; body?: unknown; headers?: Record<string, string> } | Error | "never";

export function answered(status: number, body?: unknown, headers: Record<string, string> = {}): Answering {
  return { status, body, headers };
}

/** A server whose answers are a function of the request. */
export class Scripted {
  readonly sent: Sent[] = [];
  readonly clock = new FakeClock();

  constructor(readonly answer: (sent: Sent, number: number) => Answering | Promise<Answering>) {}

  readonly fetch = async (url: string, init: Outgoing): Promise<Incoming> => {
    const [path = "", query = ""] = url.split("?");
    const text = init.body ? Buffer.from(init.body).toString() : "";
    const sent: Sent = { ...init, at: this.clock.now(), url, path, query: new URLSearchParams(query), text };
    this.sent.push(sent);
    const given = await this.answer(sent, this.sent.length - 1);
    init.signal.throwIfAborted();
    if (given instanceof Error) throw given;
    if (given === "never") {
      return new Promise((_, reject) => {
        init.signal.addEventListener("abort", () => reject(init.signal.reason as Error));
        init.leave?.addEventListener("abort", () => reject(new Error("left")), { signal: init.signal });
      });
    }
    const headers = new Map(Object.entries(given.headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]));
    const body = given.body === undefined ? "" : typeof given.body === "string" ? given.body : JSON.stringify(given.body);
    return {
      status: given.status,
      headers: { get: (name) => headers.get(name.toLowerCase()) ?? null },
      arrayBuffer: async () => Buffer.from(body),
    };
  };

  client(options: Partial<ClientOptions> = {}): Client {
    const given = { url: "http://server", namespace: "ns", token: "s3cret", fetch: this.fetch, clock: this.clock, ...options };
    return new Client(given as ClientOptions);
  }
}

/** A job as a consume answers it. */
export function handed(id: string, more: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    msg: "new job", job_id: id, queue: "q", namespace: "ns", data: Buffer.from("x").toString("base64"), remain_tries: 2,
    ttl: 100, elapsed_ms: 5, attributes: null, receipt: "2-1", ...more,
  };
}

export const PUBLISHED = answered(201, { msg: "published", job_id: "01A", due_at: "2026-11-24T02:00:00.000Z" });
export const NOTHING = answered(404, { msg: "no job available" });

/** A logger that keeps its lines. */
export class Lines implements Logger {
  readonly lines: { level: string; message: string; fields: Record<string, unknown> }[] = [];
  info = (message: string, fields: Record<string, unknown>): void => void this.lines.push({ level: "info", message, fields });
  warn = (message: string, fields: Record<string, unknown>): void => void this.lines.push({ level: "warn", message, fields });
  error = (message: string, fields: Record<string, unknown>): void => void this.lines.push({ level: "error", message, fields });

  of(words: string): { level: string; message: string; fields: Record<string, unknown> }[] {
    return this.lines.filter(({ message }) => message.includes(words));
  }
}

/** The error that a promise rejects with. */
export async function errorOf<T>(promise: Promise<unknown>, type: new (...args: never[]) => T): Promise<T> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof type) return error;
    throw error;
  }
  throw new Error("there was no error");
}
