/** The double, beside what the conformance suite compares with the server. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { DormouseError, type HeldJob, Worker } from "dormouse-client";
import { Double } from "dormouse-client/testing";
import { errorOf, settled } from "./support.mjs";

async function take(double: Double, count = 1, ttr = 30): Promise<HeldJob[]> {
  return double.client().consume("q", { count, ttr });
}

test("its clock stands until it is moved", async () => {
  const double = new Double();
  const client = double.client();
  const { dueAt } = await client.publish("q", "x", { delay: 60 });
  assert.equal((dueAt as Date).getTime(), double.now.getTime() + 60_000);
  double.advance(59.999);
  assert.deepEqual(await take(double), []);
  double.advance(0.001);
  assert.equal((await take(double))[0]?.text(), "x");
});

test("no two doubles give the same ids", async () => {
  const [a, b] = await Promise.all([new Double(), new Double()].map((double) => double.client().publish("q", "x")));
  assert.notEqual(a?.jobId, b?.jobId);
  assert.equal(a?.jobId.length, 26);
});

test("a job that is not acked comes back when its time is over, and its receipt is old", async () => {
  const double = new Double();
  await double.client().publish("q", "x", { tries: 2 });
  const [first] = await take(double);
  double.advance(29);
  await first?.touch(30);
  double.advance(29);
  assert.deepEqual(await take(double), []);
  double.advance(1);
  const [second] = await take(double);
  assert.equal(second?.remainTries, 0);
  assert.equal((await errorOf((first as HeldJob).ack(), DormouseError)).type, "lost");
  double.advance(30);
  assert.deepEqual(await double.client().deadLetter("q"), { size: 1, head: second?.id });
});

test("a poll that waits gets the job that is published, or that the clock makes due", async () => {
  const double = new Double();
  const client = double.client();
  const first = client.consume("q", { timeout: 100 });
  await client.publish("q", "now");
  assert.equal((await first)[0]?.text(), "now");
  await client.publish("q", "later", { delay: 50 });
  const second = client.consume("q", { timeout: 100 });
  await settled();
  double.advance(50);
  assert.equal((await second)[0]?.text(), "later");
  const third = client.consume("q", { timeout: 100 });
  await settled();
  double.advance(100);
  assert.deepEqual(await third, []);
});

test("keys, idempotency keys, and batches of which all or nothing is stored", async () => {
  const double = new Double();
  const client = double.client();
  const first = await client.publish("q", "1", { key: "k", idempotencyKey: "same" });
  assert.deepEqual(await client.publish("q", "1", { key: "k", idempotencyKey: "same" }), { ...first, replayed: true });
  assert.equal((await errorOf(client.publish("q", "2", { idempotencyKey: "same" }), DormouseError)).type, "key_reused");
  assert.equal((await client.publish("q", "2", { key: "k" })).duplicate, true);
  const replaced = await client.publish("q", "3", { key: "k", onConflict: "replace" });
  assert.equal(replaced.replaced, first.jobId);
  const conflict = await errorOf(client.publishMany("q", [{ data: "4" }, { data: "5", key: "k", onConflict: "fail" }]), DormouseError);
  assert.deepEqual([conflict.type, conflict.index, conflict.jobId, await client.size("q")], ["conflict", 1, replaced.jobId, 1]);
  assert.equal((await client.getByKey("q", "k")).text(), "3");
  await client.cancelByKey("q", "k");
  assert.equal((await errorOf(client.getByKey("q", "k"), DormouseError)).type, "not_found");
  await client.publish("q", "6", { attributes: { ü: "ä" } });
  assert.deepEqual((await take(double))[0]?.attributes, { ü: "ä" });
});

test("what the server refuses", async () => {
  const client = new Double().client();
  for (const options of [{ delay: 1, at: 5 }, { tries: 0 }, { tries: 65536 }, { key: "a b" }, { key: "" }, { delay: 10, ttl: 5 }, { at: "2027-13-01T00:00:00Z" }]) {
    assert.equal((await errorOf(client.publish("q", "x", options), DormouseError)).status, 400, JSON.stringify(options));
  }
  assert.equal((await errorOf(client.publish("q", Buffer.alloc(1024 * 1024 + 1)), DormouseError)).type, "too_large");
  for (const options of [{ count: 101 }, { weights: [1] }, { weights: [0, 1] }]) {
    assert.equal((await errorOf(client.consume(["a", "b"], options), DormouseError)).type, "invalid", JSON.stringify(options));
  }
});

test("lists of several pages, queues, pause, weights", async () => {
  const double = new Double();
  const client = double.client();
  await client.publishMany("q", Array.from({ length: 250 }, (_, i) => ({ json: i, delay: i % 2 })));
  for (const [state, first] of [["ready", 0], ["delayed", 1]] as const) {
    const bodies: number[] = [];
    for await (const job of client.jobs("q", state, { data: true })) bodies.push(Number(String(job.data)));
    assert.deepEqual(bodies, Array.from({ length: 125 }, (_, i) => 2 * i + first));
  }
  await client.publishMany("r", Array.from({ length: 50 }, () => ({ data: "x" })));
  const until = await client.pause("q", 60);
  assert.equal((until as Date).getTime(), double.now.getTime() + 60_000);
  const infos = [];
  for await (const { queue, ready, paused } of client.queues()) infos.push([queue, ready, paused]);
  assert.deepEqual(infos, [["q", 125, true], ["r", 50, false]]);
  assert.deepEqual((await client.consume(["q", "r"], { count: 2 })).map(({ queue }) => queue), ["r", "r"]);
  await client.resume("q");
  const queues = (await client.consume(["q", "r"], { count: 40, weights: [3, 1] })).map(({ queue }) => queue);
  assert.equal(queues.filter((queue) => queue === "q").length, 30);
  await client.destroy("q");
  assert.equal(await client.size("q"), 0);
});

test("the dead letter", async () => {
  const double = new Double();
  const client = double.client();
  await client.publishMany("q", [1, 2, 3].map((json) => ({ json, tries: 5 })));
  const jobs = await take(double, 3);
  for (const job of jobs) {
    await job.bury("no");
    double.advance(1);
  }
  const ids = jobs.map(({ id }) => id);
  assert.deepEqual(await client.deadLetter("q"), { size: 3, head: ids[0] });
  assert.deepEqual(await client.respawn("q", [ids[1] as string, "nobody"], { tries: 4, delay: 5 }), { respawned: 1, missing: ["nobody"] });
  assert.equal(await client.respawnOldest("q", 1), 1);
  await client.deleteDead("q", 5);
  assert.equal((await client.deadLetter("q")).size, 0);
  const info = await client.get("q", ids[1] as string);
  assert.deepEqual([info.state, info.remainTries, info.reason], ["delayed", 4, "no"]);
});

test("a worker on it runs and stops as on a server", async () => {
  const double = new Double();
  const client = double.client();
  const worker = new Worker(client, { signals: false, ackWindow: 0 });
  const done: string[] = [];
  worker.handle("q", (job) => void done.push(job.text()));
  const run = worker.run();
  await client.publish("q", "a");
  await client.publish("q", "b", { delay: 3600 });
  while (done.length < 1) await settled();
  await settled(); // its ack
  double.advance(3600);
  while (done.length < 2) await settled();
  worker.stop();
  await run;
  assert.deepEqual(done, ["a", "b"]);
});
