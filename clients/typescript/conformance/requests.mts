/** The ops that are calls of a client. */

import { Client, type ClientOptions, type ConsumeOptions, type HeldJob, type JobOptions, type NewJob, type Published, type PublishOptions, type State } from "dormouse-client";
import { type Fields, given, jobFields, millis, number, type Op, orNull, program, text } from "./program.mjs";

export function makeClient(op: Op): Fields {
  const options = given(op, { url: "url", namespace: "namespace", token: "token", timeout: "timeout", retry_for: "retryFor" });
  program.clients.set(text(op, "client"), new Client(options as unknown as ClientOptions));
  return {};
}

/** What a publish says, and its body: bytes, or a value of its own. */
export function message(fields: Fields): { data: Buffer | undefined; options: PublishOptions } {
  const names = {
    delay: "delay", ttl: "ttl", tries: "tries", key: "key", on_conflict: "onConflict", attributes: "attributes",
    traceparent: "traceparent", idempotency_key: "idempotencyKey",
  };
  const options = given(fields, names) as PublishOptions;
  const at = fields.at as { as: string; ms: number; value: string; seconds: number } | undefined;
  // A `Date` has no zone.
  if (at) options.at = { time: new Date(at.ms), text: at.value, number: Number((at.seconds * 1000).toFixed(3)) }[at.as] as Date | string | number;
  return { data: "json" in fields ? undefined : Buffer.from(text(fields, "data"), "base64"), options };
}

function newJob(fields: Fields): NewJob {
  const { data, options } = message(fields);
  return data ? { ...(options as JobOptions), data } : { ...(options as JobOptions), json: fields.json };
}

function publishedFields(published: Published): Fields {
  const { jobId, dueAt, duplicate, replaced, replayed } = published;
  return { job_id: jobId, due_at: millis(dueAt), duplicate, replaced: orNull(replaced), replayed };
}

function held(id: string): HeldJob {
  const job = program.held.get(id);
  if (!job) throw new Error(`the job ${id} was not consumed`);
  return job;
}

/** What a job is needed for that was consumed. */
export async function hold(op: Op): Promise<Fields> {
  const job = held(text(op, "job_id"));
  switch (op.op) {
    case "touch": return { until: millis(await job.touch(op.ttr as number | undefined)) };
    case "ack":
      await job.ack();
      return {};
    case "bury":
      await job.bury(op.reason as string | undefined);
      return { dead: true };
  }
  const how = given(op, { delay: "delay", reason: "reason" });
  const released = await job.release({ ...how, keepTry: op.spend === false });
  return released.dead ? { dead: true } : { remain_tries: released.remainTries };
}

async function taken<T>(values: AsyncIterable<T>, op: Op): Promise<T[]> {
  const most = (op.take as number | undefined) ?? Infinity;
  const all: T[] = [];
  if (most > 0) {
    for await (const value of values) if (all.push(value) >= most) break;
  }
  return all;
}

export async function request(client: Client, op: Op): Promise<Fields> {
  if (op.op === "queues") {
    const found = await taken(client.queues(), op);
    return {
      queues: found.map((q) => ({
        queue: q.queue, ready: orNull(q.ready), delayed: orNull(q.delayed), running: orNull(q.running), dead: orNull(q.dead),
        oldest_ready_age: orNull(q.oldestReadyAge), paused: q.paused, paused_until: millis(q.pausedUntil),
      })),
    };
  }
  if (op.op === "consume") {
    const options = given(op, { weights: "weights", count: "count", ttr: "ttr", timeout: "timeout" }) as ConsumeOptions;
    const jobs = await client.consume(op.queues as string[], options);
    for (const job of jobs) program.held.set(job.id, job);
    return { jobs: jobs.map(jobFields) };
  }
  const queue = text(op, "queue");
  switch (op.op) {
    case "publish": {
      const { data, options } = message(op);
      return publishedFields(await (data ? client.publish(queue, data, options) : client.publishJSON(queue, op.json, options)));
    }
    case "publish_many":
      return { jobs: (await client.publishMany(queue, (op.jobs as Fields[]).map(newJob))).map(publishedFields) };
    case "ack_many": {
      const { acked, stale } = await client.ackMany(queue, (op.job_ids as string[]).map(held));
      return { acked, stale };
    }
    case "cancel":
      await (op.key ? client.cancelByKey(queue, text(op, "key")) : client.cancel(queue, text(op, "job_id")));
      return {};
    case "promote":
      await (op.key ? client.promoteByKey(queue, text(op, "key")) : client.promote(queue, text(op, "job_id")));
      return {};
    case "get": {
      const job = await (op.key ? client.getByKey(queue, text(op, "key")) : client.get(queue, text(op, "job_id")));
      const { state, dueAt, key, reason } = job;
      return { ...jobFields(job), state: orNull(state), due_at: millis(dueAt), key: orNull(key), reason: orNull(reason) };
    }
    case "peek": {
      const job = await client.peek(queue);
      return { job: job ? jobFields(job) : null };
    }
    case "size": return { size: await client.size(queue) };
    case "dead": {
      const { size, head } = await client.deadLetter(queue);
      return { size, head: orNull(head) };
    }
    case "destroy":
      await client.destroy(queue);
      return {};
    case "pause": return { until: millis(await client.pause(queue, op.for as number | undefined)) };
    case "resume":
      await client.resume(queue);
      return {};
    case "respawn": {
      const options = given(op, { tries: "tries", delay: "delay", ttl: "ttl" });
      if (op.oldest) return { respawned: await client.respawnOldest(queue, number(op, "oldest"), options), missing: [] };
      return { ...(await client.respawn(queue, op.job_ids as string[], options)) };
    }
    case "delete_dead":
      await client.deleteDead(queue, number(op, "oldest"));
      return {};
    case "list": {
      const found = await taken(client.jobs(queue, text(op, "state") as State, { data: op.data === true }), op);
      return {
        jobs: found.map((j) => ({
          job_id: j.id, state: j.state, due_at: millis(j.dueAt), published_at: millis(j.publishedAt), remain_tries: j.remainTries,
          ttl: j.ttl, key: orNull(j.key), reason: orNull(j.reason), size: j.size, data: orNull(j.data?.toString("base64")),
          attributes: orNull(j.attributes),
        })),
      };
    }
  }
  throw new Error(`the op ${op.op} is not known`);
}
