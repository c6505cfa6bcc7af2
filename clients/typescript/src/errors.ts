/** Errors of calls, and errors that handlers throw to be more specific than "failed". */

import { STATUS_CODES } from "node:http";
import { types } from "node:util";
import type { Published } from "./client.js";

/** Type of an error. docs/clients.md lists the responses of each. */
export type ErrorType =
  | "invalid" // 400, or rejected before it was sent
  | "unauthorized" // 401
  | "forbidden" // 403
  | "not_found" // 404
  | "unsupported" // the server is too old, or lmstfy's
  | "lost" // 409: the job is no longer this worker's
  | "conflict" // 409: the key is taken; the job is not dead, or not delayed
  | "busy" // 409: a request with the same idempotency key is in flight
  | "too_large" // 413
  | "key_reused" // 422: the idempotency key was used for another request
  | "limited" // 429
  | "full" // 507: the disk, or the quota of the namespace
  | "unavailable" // 502, 503, 504
  | "server" // any other 5xx
  | "timeout" // no response in time, or 408
  | "network" // the connection was refused, reset or aborted
  | "protocol"; // not a response of Dormouse: a redirect, or an unreadable body

const RETRYABLE: ReadonlySet<ErrorType> = new Set([
  "busy", "limited", "full", "unavailable", "server", "timeout", "network",
]);

/** Details of a {@link DormouseError} besides its type and text. */
export interface ErrorDetails {
  status?: number | undefined;
  requestId?: string | undefined;
  retryAfter?: number | undefined;
  jobId?: string | undefined;
  index?: number | undefined;
  published?: Published[] | undefined;
  cause?: unknown;
}

/** Rejection of every call of a client, unless the caller's signal has ended it. The message is the server's text. */
export class DormouseError extends Error {
  static {
    this.prototype.name = "DormouseError";
  }
  readonly type: ErrorType;
  /** The operation, such as `publish mail`. */
  readonly op: string;
  /** Of HTTP; missing without a response. */
  declare readonly status?: number;
  /** `X-Request-ID` of the response, also in the server's log. */
  declare readonly requestId?: string;
  /** How many seconds the server asks to wait. */
  declare readonly retryAfter?: number;
  /** Of a conflict: the job that has the key. */
  declare readonly jobId?: string;
  /** Index of the job in the call, from 0. */
  declare readonly index?: number;
  /** Of a publish of several jobs: those published before. */
  declare readonly published?: Published[];

  constructor(type: ErrorType, op: string, message: string, details: ErrorDetails = {}) {
    const { cause, ...fields } = details;
    super(message, cause === undefined ? undefined : { cause });
    this.type = type;
    this.op = op;
    for (const [name, value] of Object.entries(fields)) {
      if (value !== undefined) Object.defineProperty(this, name, { value, enumerable: true });
    }
  }

  /** Whether the same call may succeed later. */
  get retryable(): boolean {
    return RETRYABLE.has(this.type);
  }

  /** Returns the error with more details. @internal */
  with(details: ErrorDetails): DormouseError {
    const { status, requestId, retryAfter, jobId, index, published, cause } = this;
    const before = { status, requestId, retryAfter, jobId, index, published, cause };
    return new DormouseError(this.type, this.op, this.message, { ...before, ...details });
  }

  /** Whether the response says that nothing was changed, so that every call may be retried. @internal */
  get nothingDone(): boolean {
    return this.status === 429 || this.status === 503 || this.type === "busy";
  }

  /** Whether the request may or may not have been executed. @internal */
  get inDoubt(): boolean {
    if (this.status === undefined) return this.type === "timeout" || this.type === "network";
    return [408, 500, 502, 504, 507].includes(this.status);
  }

  /** Whether the request may have been executed although its reply was lost or is unreadable. @internal */
  get answerLost(): boolean {
    if (this.type === "protocol" && this.status !== undefined && this.status >= 200 && this.status <= 299) return true;
    return this.inDoubt && !(this.status === undefined && neverSent(this.cause));
  }
}

/** Whether the connection could not be made. */
function neverSent(cause: unknown): boolean {
  if (!(cause instanceof Error)) return false;
  const { syscall, code } = cause as NodeJS.ErrnoException;
  if (syscall === "connect" || syscall === "getaddrinfo" || code === "ECONNREFUSED") return true;
  return neverSent(cause.cause);
}

/** @internal */
export function invalid(op: string, message: string, details?: ErrorDetails): DormouseError {
  return new DormouseError("invalid", op, message, details);
}

/** Returns the error of a request without a complete response. @internal */
export function broken(op: string, cause: unknown, timedOut: boolean): DormouseError {
  if (timedOut) return new DormouseError("timeout", op, "no answer in time", { cause });
  // The error of a fetch has the actual error as its cause.
  const inner = cause instanceof Error && cause.cause instanceof Error ? cause.cause : cause;
  const { message, code } = (inner instanceof Error ? inner : {}) as Partial<NodeJS.ErrnoException>;
  return new DormouseError("network", op, message || code || "the connection broke", { cause });
}

/** Returns the error in a response other than 2xx. @internal */
export function refused(op: string, status: number, headers: { get(name: string): string | null }, body: Buffer): DormouseError {
  let told: Record<string, unknown> = {};
  try {
    const read: unknown = JSON.parse(body.toString());
    if (typeof read === "object" && read !== null) told = read as Record<string, unknown>;
  } catch {
    // A proxy's response: its text is used unchanged.
  }
  const said = told.error || told.msg;
  const message = typeof said === "string"
    ? said
    : cut(body.toString(), 200) || STATUS_CODES[status] || "an answer without a text";
  const type = typeOf(status, message);
  return new DormouseError(type, op, message, {
    status,
    requestId: headers.get("x-request-id") ?? undefined,
    retryAfter: RETRYABLE.has(type) ? retryAfter(headers.get("retry-after")) : undefined,
    jobId: typeof told.job_id === "string" ? told.job_id : undefined,
    index: typeof told.index === "number" ? told.index : undefined,
  });
}

function typeOf(status: number, message: string): ErrorType {
  switch (status) {
    case 400: return "invalid";
    case 401: return "unauthorized";
    case 403: return "forbidden";
    case 404: return message === "api not found" ? "unsupported" : "not_found";
    case 408: return "timeout";
    case 409:
      if (message === "the job is not yours any more") return "lost";
      return message.endsWith("is under way") ? "busy" : "conflict";
    case 413: return "too_large";
    case 422: return "key_reused";
    case 429: return "limited";
    case 507: return "full";
    case 502: case 503: case 504: return "unavailable";
  }
  return status >= 500 && status < 600 ? "server" : "protocol";
}

/** Parses seconds or a date. Invalid and past values are undefined. */
function retryAfter(text: string | null): number | undefined {
  if (text === null) return undefined;
  const seconds = /^\s*\d{1,9}\s*$/.test(text) ? Number(text) : (Date.parse(text) - Date.now()) / 1000;
  return seconds > 0 ? seconds : undefined;
}

/** Truncates a text to at most `most` bytes, in whole characters. @internal */
export function cut(text: string, most: number): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= most) return text;
  while (most > 0 && (bytes[most]! & 0xc0) === 0x80) most--;
  return bytes.toString("utf8", 0, most);
}

/** Thrown by a handler: the job is retried after this number of seconds, and a try is used. */
export class RetryAfter extends Error {
  static {
    this.prototype.name = "RetryAfter";
  }
  constructor(readonly seconds: number, reason?: unknown) {
    super(textOf(reason ?? `again in ${seconds} s`), { cause: reason });
  }
}

/** Thrown by a handler: the job is postponed by this number of seconds without a failure. No try is used. */
export class Snooze extends Error {
  static {
    this.prototype.name = "Snooze";
  }
  constructor(readonly seconds: number) {
    super(`not for ${seconds} s`);
  }
}

/** Thrown by a handler: retries are useless, and the job is buried. */
export class Permanent extends Error {
  static {
    this.prototype.name = "Permanent";
  }
  constructor(reason: unknown) {
    super(textOf(reason), { cause: reason });
  }
}

/** A value other than an `Error` that a handler threw, as its `cause`. */
export class PanicError extends Error {
  static {
    this.prototype.name = "PanicError";
  }
  constructor(cause: unknown) {
    super(`panic: ${textOf(cause)}`, { cause });
  }
}

/** Why the signal of a handler was aborted: its `reason`. */
export class CancelledError extends Error {
  static {
    this.prototype.name = "CancelledError";
  }
  /**
   * `lost`: another worker has the job, or will have it. `drain`: the worker stops. `time_limit`: the handler's time is
   * up.
   */
  readonly why: "lost" | "drain" | "time_limit";
  constructor(why: "lost" | "drain" | "time_limit") {
    super({ lost: "the job is lost", drain: "the worker stops", time_limit: "time limit" }[why]);
    this.why = why;
  }
}

/** Rejection of `run` if a handler had not returned at the end of its grace. */
export class UncleanError extends Error {
  static {
    this.prototype.name = "UncleanError";
  }
  constructor(readonly handlers: number) {
    super(`handlers had not returned when the worker ended: ${handlers}`);
  }
}

/** Whether it is an error, also of another realm. @internal */
export function isError(value: unknown): value is Error {
  return value instanceof Error || types.isNativeError(value);
}

function textOf(reason: unknown): string {
  if (isError(reason)) return reason.message || reason.name;
  try {
    return typeof reason === "object" && reason !== null ? JSON.stringify(reason) : String(reason);
  } catch {
    return "a value that is no text";
  }
}
