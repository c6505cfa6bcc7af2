/** Sends and retries requests. client.ts and job.ts define them, and parse the replies. */

import { randomBytes } from "node:crypto";
import { type Clock, pauseAfter, sleep } from "./clock.js";
import { broken, DormouseError, invalid, refused } from "./errors.js";
import type { Fetch, Incoming } from "./transport.js";

/** Version of the library, and of the server that it was made for. */
export const VERSION = "0.1.0";

/** @internal */
export type Query = Record<string, string>;

/** A call to the server. @internal */
export interface Ask {
  op: string;
  method: "GET" | "POST" | "PUT" | "DELETE";
  /** One or several queues; none for requests about the namespace. */
  queues: string[];
  /** The path below the queue. */
  path?: string[];
  query?: Query;
  headers?: Record<string, string>;
  body?: Uint8Array;
  idempotencyKey?: string | undefined;
  /** Whether to retry also after errors that leave open whether it was executed. */
  repeat?: boolean;
  /** A 404 of a retry means that the first request was executed. */
  goneIsDone?: boolean;
  /** Timeout of one request in milliseconds; by default the client's. */
  timeout?: number | undefined;
  /** How long the server may hold it in addition. */
  waits?: number;
  /** Time for all retries in milliseconds; by default the client's. */
  retryFor?: number | undefined;
  signal?: AbortSignal | undefined;
  leave?: AbortSignal;
  /** Called when the head of a response has arrived. */
  heard?: () => void;
}

/** The JSON of a reply. @internal */
export type Answer = Record<string, unknown>;

const NAME = /^[A-Za-z0-9_-]{1,255}$/;
function isName(name: unknown): boolean {
  return typeof name === "string" && NAME.test(name);
}

const NAME_RULE = "has 1 to 255 letters, digits, - and _";

/** Sends the requests of one client. @internal */
export class Caller {
  readonly timeout: number;
  readonly clock: Clock;
  readonly #base: string;
  readonly #token: string;
  readonly retryFor: number;
  readonly #fetch: Fetch;

  /** Durations are in milliseconds. */
  constructor(
    url: string, namespace: string, token: string, timeout: number, retryFor: number, fetch: Fetch, clock: Clock,
  ) {
    const op = "new client";
    let parsed: URL;
    try {
      parsed = new URL(url);
    } catch {
      throw invalid(op, "the URL should be http://host:port or https://host:port");
    }
    if (!["http:", "https:"].includes(parsed.protocol)) {
      throw invalid(op, "the URL should be http://host:port or https://host:port");
    }
    if (parsed.search || parsed.hash || parsed.username || parsed.password) {
      throw invalid(op, "the URL should have no query, no fragment and no user");
    }
    if (!isName(namespace)) throw invalid(op, `the name of a namespace ${NAME_RULE}`);
    if (!printable(token)) throw invalid(op, "the token has characters that no header can carry");
    if (!(timeout > 0)) throw invalid(op, "timeout should be longer than 0");
    if (!(retryFor >= 0 && retryFor <= 540_000)) throw invalid(op, "retryFor should be from 0 to 540 s");
    this.#base = `${parsed.origin}${parsed.pathname.replace(/\/+$/, "")}/api/${namespace}`;
    this.#token = token;
    this.timeout = timeout;
    this.retryFor = retryFor;
    this.#fetch = fetch;
    this.clock = clock;
  }

  /**
   * Sends a request, and retries it while that is safe and useful. `read` parses a complete reply, and throws if a
   * field is missing.
   */
  async call<T>(ask: Ask, read: (body: unknown, headers: Incoming["headers"]) => T): Promise<T> {
    return this.#repeat(ask, (answer) => read(JSON.parse(answer.body.toString()), answer.headers));
  }

  /** Sends a call whose reply is only a status. */
  async done(ask: Ask): Promise<void> {
    await this.#repeat(ask, (answer) => {
      if (answer.status !== 204) throw new Error("not 204");
    });
  }

  async #repeat<T>(ask: Ask, read: (answer: { status: number; headers: Incoming["headers"]; body: Buffer }) => T): Promise<T> {
    const url = this.#address(ask);
    const retryFor = ask.retryFor ?? this.retryFor;
    let timeout = ask.timeout ?? this.timeout;
    const began = this.clock.now();
    let perhapsDone = false;
    for (let n = 0; ; n++) {
      try {
        const answer = await this.#send(ask, url, timeout + (ask.waits ?? 0), perhapsDone && ask.goneIsDone);
        try {
          return read(answer);
        } catch (error) {
          if (error instanceof DormouseError) throw error;
          const why = error instanceof Error ? error.message : String(error);
          throw new DormouseError("protocol", ask.op, `this is no answer of a Dormouse: ${why}`, {
            status: answer.status,
            requestId: answer.headers.get("x-request-id") ?? undefined,
          });
        }
      } catch (error) {
        if (!(error instanceof DormouseError)) throw error;
        perhapsDone ||= error.answerLost;
        const pause = Math.max(pauseAfter(n), (error.retryAfter ?? 0) * 1000);
        const left = retryFor - (this.clock.now() - began) - pause;
        if (left <= 0 || !(error.nothingDone || (ask.repeat && error.inDoubt))) throw error;
        if (!(await sleep(this.clock, pause, ask.signal))) throw ask.signal?.reason;
        timeout = Math.min(timeout, left);
      }
    }
  }

  /** Returns the URL of a request. Rejects names that would change the path. */
  #address(ask: Ask): string {
    let url = this.#base;
    for (const queue of ask.queues) {
      if (!isName(queue)) throw invalid(ask.op, `the name of a queue ${NAME_RULE}`);
    }
    if (ask.queues.length > 0) url += `/${ask.queues.join(",")}`;
    for (const part of ask.path ?? []) {
      if (typeof part !== "string" || part === "" || Buffer.byteLength(part) > 255 || !wellFormed(part)) {
        throw invalid(ask.op, "an id or a key has 1 to 255 bytes");
      }
      const escaped = encodeURIComponent(part);
      url += `/${escaped === "." || escaped === ".." ? escaped.replaceAll(".", "%2E") : escaped}`;
    }
    const query = new URLSearchParams(ask.query).toString();
    return query ? `${url}?${query}` : url;
  }

  /** Sends a request once. With `goneIsDone`, a 404 is treated as 204. */
  async #send(
    ask: Ask, url: string, timeout: number, goneIsDone = false,
  ): Promise<{ status: number; headers: Incoming["headers"]; body: Buffer }> {
    ask.signal?.throwIfAborted();
    const end = new AbortController();
    let timedOut = false;
    const cancel = this.clock.after(timeout, () => {
      timedOut = true;
      end.abort();
    });
    const stop = (): void => end.abort();
    ask.signal?.addEventListener("abort", stop);
    try {
      const headers: Record<string, string> = { "User-Agent": `dormouse-typescript/${VERSION}`, ...ask.headers };
      if (this.#token) headers["X-Token"] = this.#token;
      if (ask.idempotencyKey !== undefined) headers["Idempotency-Key"] = ask.idempotencyKey;
      const answer = await this.#fetch(url, {
        method: ask.method,
        headers,
        ...(ask.method !== "GET" && ask.body && { body: ask.body }),
        redirect: "manual",
        signal: end.signal,
        ...(ask.leave && { leave: ask.leave }),
      });
      ask.heard?.();
      const bytes = await answer.arrayBuffer();
      const body = bytes instanceof Uint8Array ? Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length) : Buffer.from(bytes);
      if (answer.status >= 200 && answer.status <= 299) return { status: answer.status, headers: answer.headers, body };
      const error = refused(ask.op, answer.status, answer.headers, body);
      if (goneIsDone && error.type === "not_found") return { status: 204, headers: answer.headers, body: Buffer.alloc(0) };
      throw error;
    } catch (error) {
      if (error instanceof DormouseError) throw error;
      if (ask.signal?.aborted && !timedOut) throw ask.signal.reason;
      throw broken(ask.op, error, timedOut);
    } finally {
      cancel();
      ask.signal?.removeEventListener("abort", stop);
    }
  }
}

/** Returns the random idempotency key of a publish without one. @internal */
export function randomKey(): string {
  return randomBytes(16).toString("hex");
}

/** Whether a header can carry the text. @internal */
export function printable(text: string): boolean {
  return /^[ -~]*$/.test(text);
}

/** Whether a text can be encoded as UTF-8. @internal */
export function wellFormed(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}

/** Formats seconds with up to three decimals, rounded up to milliseconds. @internal */
export function seconds(op: string, name: string, duration: number): string {
  const ms = Math.ceil(Number((duration * 1000).toFixed(6)));
  if (!Number.isSafeInteger(ms) || ms < 0) throw invalid(op, `${name} should be a number of seconds, 0 or more`);
  return String(ms / 1000);
}

/** Formats seconds for lmstfy's routes, rounded up to whole seconds. @internal */
export function wholeSeconds(op: string, name: string, duration: number): string {
  return String(Math.ceil(Number(seconds(op, name, duration))));
}

// The following functions parse replies: each throws if the reply has another form.

/** @internal */
export function object(value: unknown): Answer {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Answer;
  throw new Error("it is no object");
}

/** @internal */
export function list<T>(value: unknown, each: (one: unknown) => T): T[] {
  if (value === null || value === undefined) return [];
  if (Array.isArray(value)) return value.map(each);
  throw new Error("it lacks a list");
}

/** @internal */
export function text(answer: Answer, name: string): string {
  const value = answer[name];
  if (typeof value === "string" && value !== "") return value;
  throw new Error(`it lacks ${name}`);
}

/** @internal */
export function string(value: unknown): string {
  if (typeof value === "string") return value;
  throw new Error("it lacks a text");
}

/** Returns a text that may be missing. @internal */
export function optional(answer: Answer, name: string): string | undefined {
  const value = answer[name];
  return typeof value === "string" && value !== "" ? value : undefined;
}

/** @internal */
export function number(answer: Answer, name: string): number {
  const value = answer[name];
  if (typeof value === "number") return value;
  throw new Error(`it lacks ${name}`);
}

/** Returns an instant that may be missing. @internal */
export function instant(answer: Answer, name: string): Date | undefined {
  const value = answer[name];
  if (typeof value !== "string") return undefined;
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) throw new Error(`${name} is no instant`);
  return date;
}
