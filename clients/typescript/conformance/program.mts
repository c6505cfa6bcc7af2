/** What the lines of the input have made, and how the output is written. */

import type { Client, HeldJob, Job, Worker } from "dormouse-client";

export type Fields = Record<string, unknown>;

/** A line of the input. */
export interface Op extends Fields {
  id: unknown;
  op: string;
}

/** A worker of the program, and its end. */
export interface Made {
  name: string;
  worker: Worker;
  client: Client;
  running: number;
  ended: Promise<unknown>;
  clean: boolean;
}

class Gate {
  open!: () => void;
  readonly opened = new Promise<void>((resolve) => {
    this.open = resolve;
  });
}

class Program {
  readonly clients = new Map<string, Client>();
  readonly workers = new Map<string, Made>();
  readonly held = new Map<string, HeldJob>();
  /** How often a job has come to an end with `times`. */
  readonly done = new Map<string, number>();
  /** A worker has left handlers. */
  unclean = false;
  readonly #gates = new Map<string, Gate>();

  gate(name: string): Gate {
    const gate = this.#gates.get(name) ?? new Gate();
    this.#gates.set(name, gate);
    return gate;
  }
}

export const program = new Program();

export function write(line: Fields): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

export function event(name: string, fields: Fields): void {
  write({ event: name, at: Date.now(), ...fields });
}

export function orNull<T>(value: T | undefined): T | null {
  return value ?? null;
}

export function millis(instant: Date | undefined): number | null {
  return instant ? instant.getTime() : null;
}

export function text(fields: Fields, name: string): string {
  const value = fields[name];
  if (typeof value === "string") return value;
  throw new Error(`the field ${name} should be a text`);
}

export function number(fields: Fields, name: string): number {
  const value = fields[name];
  if (typeof value === "number") return value;
  throw new Error(`the field ${name} should be a number`);
}

/** Those of the fields that were given, by the library's names. */
export function given(fields: Fields, names: Record<string, string>): Fields {
  const found: Fields = {};
  for (const [name, ours] of Object.entries(names)) {
    if (fields[name] !== undefined && fields[name] !== null) found[ours] = fields[name];
  }
  return found;
}

export function jobFields(job: Job): Fields {
  return {
    job_id: job.id, queue: job.queue, namespace: job.namespace, data: job.data.toString("base64"),
    remain_tries: job.remainTries, ttl: job.ttl, elapsed_ms: Math.round(job.elapsed * 1000), attributes: job.attributes,
    traceparent: orNull(job.traceparent),
  };
}
