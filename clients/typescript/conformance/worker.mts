/** Workers, and a handler that does what the body of each job says. */

import { setTimeout as sleep } from "node:timers/promises";
import { CancelledError, type Client, type Context, type HeldJob, type Hooks, Permanent, RetryAfter, Snooze, UncleanError, Worker, type WorkerOptions } from "dormouse-client";
import { Double } from "dormouse-client/testing";
import { event, type Fields, given, jobFields, type Made, number, type Op, orNull, program, text } from "./program.mjs";
import { message } from "./requests.mjs";

export function makeWorker(op: Op): Fields {
  const name = text(op, "worker");
  const client = program.clients.get(String(op.client));
  if (!client) throw new Error(`no client is called ${String(op.client)}`);
  const options = given(op, {
    concurrency: "concurrency", ttr: "ttr", poll: "poll", backoff: "backoff", time_limit: "timeLimit", drain: "drain",
    grace: "grace", ack_window: "ackWindow",
  }) as WorkerOptions;
  const weighted = !Array.isArray(op.queues);
  const queues = weighted ? Object.keys(op.queues as Fields) : (op.queues as string[]);
  if (weighted) options.weights = op.queues as Record<string, number>;
  const worker = new Worker(client, { ...options, hooks: hooksOf(name) });
  const made: Made = { name, worker, client, running: 0, ended: Promise.resolve(), clean: true };
  worker.use(async (job, _context, next) => {
    const told = (phase: string, error: unknown): void => event("middleware", { worker: name, job_id: job.id, phase, error });
    told("before", null);
    try {
      await next();
    } catch (error) {
      told("after", (error as Error).message);
      throw error;
    }
    told("after", null);
  });
  for (const queue of queues) worker.handle(queue, (job, context) => handle(made, job, context));
  program.workers.set(name, made);
  return {};
}

function hooksOf(worker: string): Hooks {
  const hook = (name: string, fields: Fields): void => event("hook", { worker, name, ...fields });
  const said = (error: unknown): string | null => (error === undefined ? null : (error as Error).message);
  return {
    poll: (jobs, seconds, error) => hook("poll", { jobs, seconds, error: said(error) }),
    start: (job) => hook("start", { job_id: job.id }),
    finish: (job, { outcome, seconds, elapsed, error }) =>
      hook("finish", { job_id: job.id, outcome, seconds, elapsed, error: said(error) }),
    touch: (job, error) => hook("touch", { job_id: job.id, error: said(error) }),
    away: (error) => hook("away", { error: said(error) }),
    back: (seconds) => hook("back", { seconds }),
    drain: (running) => hook("drain", { running }),
  };
}

function made(op: Op): Made {
  const found = program.workers.get(text(op, "worker"));
  if (!found) throw new Error(`no worker is called ${String(op.worker)}`);
  return found;
}

export function startWorker(op: Op, describe: (error: unknown) => Fields): Fields {
  const worker = made(op);
  const stopped = (error: unknown): void => {
    worker.clean = !(error instanceof UncleanError);
    program.unclean ||= !worker.clean;
    event("stopped", { worker: worker.name, clean: worker.clean, error: error === undefined ? null : describe(error) });
  };
  worker.ended = worker.worker.run().then(() => stopped(undefined), stopped);
  return {};
}

export async function stopWorker(op: Op): Promise<Fields> {
  const worker = made(op);
  worker.worker.stop();
  await worker.ended;
  return { clean: worker.clean };
}

/** One step of a job's body. */
interface Step {
  sleep?: number; wait?: string; ignore?: number; block?: number; publish?: { queue: string; data: string }; touch?: number;
  ack?: boolean; attempt?: boolean; swallow?: boolean; fail?: string; permanent?: string;
  retry?: { after: number; text: string }; snooze?: number; panic?: string; times?: number;
}

/** Does the steps of a job. */
async function handle(worker: Made, job: HeldJob, { signal }: Context): Promise<void> {
  const tell = (name: string, fields: Fields): void => event(name, { worker: worker.name, ...fields });
  tell("start", { job: jobFields(job), running: ++worker.running });
  const cancelled = (): void => tell("cancelled", { job_id: job.id, cause: (signal.reason as CancelledError).why });
  signal.addEventListener("abort", cancelled);
  let result = "ok";
  try {
    await steps(worker, job, signal, tell);
  } catch (error) {
    result = !(error instanceof Error) ? "panic" : error instanceof CancelledError ? "cancelled" : "error";
    throw error;
  } finally {
    signal.removeEventListener("abort", cancelled);
    worker.running--;
    tell("end", { job_id: job.id, result });
  }
}

async function steps(worker: Made, job: HeldJob, signal: AbortSignal, tell: (name: string, fields: Fields) => void): Promise<void> {
  const body = job.text();
  if (body.startsWith("json:")) {
    job.json();
    return;
  }
  let todo: Step[];
  try {
    todo = (JSON.parse(body) as { do?: Step[] }).do ?? [];
  } catch {
    return; // any other body is done at once
  }
  let swallow = false;
  for (const [index, step] of todo.entries()) {
    if (passedOver(job, index, step)) continue;
    if (step.swallow) swallow = true;
    try {
      await one(worker, job, signal, tell, step);
    } catch (error) {
      if (swallow && error instanceof CancelledError) return;
      throw error;
    }
  }
}

function passedOver(job: HeldJob, index: number, { times }: Step): boolean {
  if (times === undefined) return false;
  const name = `${job.id}/${index}`;
  const count = (program.done.get(name) ?? 0) + 1;
  program.done.set(name, count);
  return count > times;
}

async function one(
  worker: Made, job: HeldJob, signal: AbortSignal, tell: (name: string, fields: Fields) => void, step: Step,
): Promise<void> {
  if (step.sleep !== undefined) await untilCancelled(sleep(step.sleep * 1000), signal);
  else if (step.wait !== undefined) await untilCancelled(program.gate(step.wait).opened, signal);
  else if (step.ignore !== undefined) await sleep(step.ignore * 1000);
  else if (step.block !== undefined) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, step.block * 1000);
  else if (step.publish) await worker.client.publish(step.publish.queue, Buffer.from(step.publish.data, "base64"));
  else if (step.touch !== undefined) await job.touch(step.touch);
  else if (step.ack) await job.ack();
  else if (step.attempt) tell("attempt", { job_id: job.id, attempt: await job.attempt() });
  else if (step.fail !== undefined) throw new Error(step.fail);
  else if (step.permanent !== undefined) throw new Permanent(step.permanent);
  else if (step.retry) throw new RetryAfter(step.retry.after, step.retry.text);
  else if (step.snooze !== undefined) throw new Snooze(step.snooze);
  else if (step.panic !== undefined) throw step.panic; // what is no Error is a panic here
}

function untilCancelled(promise: Promise<unknown>, signal: AbortSignal): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason as Error);
    if (signal.aborted) return stop();
    signal.addEventListener("abort", stop, { once: true });
    void promise.then(resolve);
  });
}

/** Publishes jobs to a server in the process and handles them, moves its clock, and handles what is due then. */
export async function double(op: Op): Promise<Fields> {
  const server = new Double();
  const client: Client = server.client();
  const handled: Fields[] = [];
  const begun = new Map<HeldJob, Fields>();
  const hooks: Hooks = {
    start: (job) => {
      const fields: Fields = { data: job.data.toString("base64") };
      begun.set(job, fields);
      handled.push(fields);
    },
    finish: (job, { outcome }) => {
      (begun.get(job) as Fields).outcome = outcome;
    },
  };
  const worker = new Worker(client, { concurrency: 1, backoff: [5], signals: false, hooks });
  const made: Made = { name: "double", worker, client, running: 0, ended: Promise.resolve(), clean: true };
  worker.handle("q", (job, context) => handle(made, job, context));
  for (const job of op.jobs as Fields[]) {
    const { data, options } = message(job);
    await (data ? client.publish("q", data, options) : client.publishJSON("q", job.json, options));
  }
  await worker.runUntilIdle();
  server.advance(number(op, "advance"));
  await worker.runUntilIdle();
  const result: Fields = { handled };
  for (const state of ["ready", "delayed", "dead"] as const) {
    const jobs: Fields[] = [];
    for await (const job of client.jobs("q", state, { data: true })) {
      jobs.push({ data: (job.data as Buffer).toString("base64"), reason: orNull(job.reason) });
    }
    result[state] = jobs;
  }
  return result;
}
