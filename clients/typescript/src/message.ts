/** Options of a publish, and their encoding. */

import { types } from "node:util";
import { type Query, printable, seconds, wellFormed } from "./call.js";
import { invalid } from "./errors.js";
import { currentTraceparent } from "./trace.js";

/** The body of a job. A string is sent as UTF-8. */
export type Data = string | ArrayBufferView | ArrayBuffer;

/** Options of a job. Omitted ones get the server's defaults. Durations are in seconds. */
export interface JobOptions {
  /** Time until it is ready, rounded up to milliseconds. */
  delay?: number;
  /** When it is ready: a `Date`, Unix milliseconds, or a text in RFC 3339. */
  at?: Date | number | string;
  /** Time from its publish until it expires; 0 is never. */
  ttl?: number;
  /** Maximum number of deliveries. The server's default is 1: a job that may fail needs more. */
  tries?: number;
  /** The producer's name for the job, unique in its queue: 1 to 255 bytes of printable ASCII without blanks. */
  key?: string;
  /** What to do if the key is taken: keep the existing job (the default), replace it, or fail with `conflict`. */
  onConflict?: "keep" | "replace" | "fail";
  /** Texts besides the body: names in lower case of up to 32 bytes, values of up to 128, at most 16. */
  attributes?: Record<string, string>;
  /**
   * The attribute of that name, through which traces continue. Within a handler it defaults to that of the handler's
   * job.
   */
  traceparent?: string;
}

/** A job of a publish of several. */
export type NewJob = JobOptions & ({ data: Data; json?: never } | { json: unknown; data?: never });

const MAX_ATTRIBUTES = 16;

function bytes(op: string, data: Data): Uint8Array {
  if (typeof data === "string") return Buffer.from(data);
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  if (types.isAnyArrayBuffer(data)) return new Uint8Array(data);
  throw invalid(op, "the body should be a text or bytes");
}

/** @internal */
export function jsonText(op: string, value: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (cause) {
    throw invalid(op, `the body cannot be JSON: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
  if (text === undefined) throw invalid(op, "the body cannot be JSON: it has no value");
  return text;
}

/** A validated job to be published. @internal */
export class Message {
  readonly data: Uint8Array;
  readonly #attributes: [string, string][];
  readonly #numbers: Query = {};
  readonly #texts: Query = {};

  /** Rejects values that the server would change or could not read. */
  constructor(op: string, data: Data, options: JobOptions) {
    this.data = bytes(op, data);
    const { delay, at, ttl, tries, key, onConflict } = options;
    if (delay !== undefined) this.#numbers.delay = seconds(op, "delay", delay);
    if (typeof at === "string") {
      if (!/^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/.test(at)) {
        throw invalid(op, "at should be a text in RFC 3339, with its zone");
      }
      this.#texts.at = at;
    } else if (at !== undefined) {
      const ms = Math.max(0, Math.ceil(Number(at)));
      if (!Number.isSafeInteger(ms)) throw invalid(op, "at should be an instant");
      this.#numbers.at_ms = String(ms);
    }
    if (ttl !== undefined) this.#numbers.ttl = seconds(op, "ttl", ttl);
    if (tries !== undefined) {
      if (!Number.isSafeInteger(tries) || tries < 0) throw invalid(op, "tries should be a whole number");
      this.#numbers.tries = String(tries);
    }
    if (key !== undefined) this.#texts.key = key;
    if (onConflict !== undefined) this.#texts.on_conflict = onConflict;
    this.#attributes = attributesOf(op, options);
  }

  /** Whether headers can carry the attributes, through proxies too. */
  get fitsHeaders(): boolean {
    return this.#attributes.every(
      ([name, value]) => /^[a-z0-9-]+$/.test(name) && printable(value) && value.trim() === value,
    );
  }

  get query(): Query {
    return { ...this.#numbers, ...this.#texts };
  }

  get headers(): Record<string, string> {
    if (this.#attributes.length === 0) return {};
    const all = this.#attributes.map(([name, value]) => [`Job-Attr-${name}`, value]);
    return { "Enable-Job-Version": "YES", ...(Object.fromEntries(all) as Record<string, string>) };
  }

  /** The job as an element of a batch. */
  get element(): Buffer {
    const { buffer, byteOffset, length } = this.data;
    const fields: Record<string, unknown> = { data: Buffer.from(buffer, byteOffset, length).toString("base64") };
    for (const [name, value] of Object.entries(this.#numbers)) fields[name] = Number(value);
    Object.assign(fields, this.#texts);
    if (this.#attributes.length > 0) fields.attributes = Object.fromEntries(this.#attributes);
    return Buffer.from(JSON.stringify(fields));
  }
}

function attributesOf(op: string, options: JobOptions): [string, string][] {
  const all = new Map(Object.entries(options.attributes ?? {}));
  if (options.traceparent !== undefined) all.set("traceparent", options.traceparent);
  if (all.size > MAX_ATTRIBUTES) throw invalid(op, `too many attributes, cannot exceed ${MAX_ATTRIBUTES}`);
  for (const [name, value] of all) {
    if (!fits(name, 32) || name !== name.toLowerCase()) {
      throw invalid(op, "the name of an attribute has 1 to 32 bytes of UTF-8 in lower case");
    }
    if (typeof value !== "string" || !fits(value, 128)) {
      throw invalid(op, `the value of an attribute has 1 to 128 bytes of UTF-8: that of ${name}`);
    }
  }
  // Continues the trace of the handler that publishes, unless there are 16 attributes.
  const current = currentTraceparent();
  if (current && fits(current, 128) && !all.has("traceparent") && all.size < MAX_ATTRIBUTES) all.set("traceparent", current);
  return [...all];
}

function fits(text: string, most: number): boolean {
  return text !== "" && Buffer.byteLength(text) <= most && wellFormed(text);
}
