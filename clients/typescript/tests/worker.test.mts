import assert from "node:assert/strict";
import { test } from "node:test";
import {
  CancelledError, DormouseError, type Finished, type Handler, type HeldJob, type Middleware, PanicError, Permanent, RetryAfter, Snooze,
  UncleanError, withTraceparent, Worker, type WorkerOptions,
} from "dormouse-client";
import { Double } from "dormouse-client/testing";
import { answered, type Answering, errorOf, handed, Lines, NOTHING, Scripted, type Sent, settled } from "./support.mjs";

const RESET = Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET", syscall: "read" });
const GONE = answered(409, { error: "the job is not yours any more" });

/** A worker of a double, and how its jobs have ended. */
function onDouble(handler: Handler, options: WorkerOptions = {}) {
  const double = new Double();
  const client = double.client();
  const ends: (Finished & { data: string })[] = [];
  const lines = new Lines();
  const hooks = { finish: (job: HeldJob, finished: Finished) => void ends.push({ ...finished, data: job.text() }) };
  const worker = new Worker(client, { signals: false, logger: lines, hooks, ...options }).handle("q", handler);
  return { double, client, worker, ends, lines };
}

const TOUCHED = answered(200, { receipt: "2-2" });
const RELEASED = answered(200, { msg: "released", remain_tries: 3, due_at: null });

/** Answers touches, releases, and looks. */
function willing({ path, query }: Sent): Answering {
  if (query.get("verbose")) return answered(200, handed("01A"));
  return path.endsWith("touch") ? TOUCHED : RELEASED;
}

/** A worker whose first poll brings jobs, on a clock that the test moves. */
function scripted(jobs: string[], answer: (sent: Sent, n: number) => Answering, handler: Handler, options: WorkerOptions = {}) {
  let polls = 0;
  const server = new Scripted((sent, n) => {
    if (!sent.path.endsWith("/ns/q")) return answer(sent, n);
    return polls++ === 0 ? answered(200, jobs.map((id) => handed(id))) : "never";
  });
  const ends: [string, string][] = [];
  const lines = new Lines();
  const hooks = { finish: (job: HeldJob, { outcome }: Finished) => void ends.push([job.id, outcome]) };
  const worker = new Worker(server.client(), { signals: false, logger: lines, hooks, ...options }).handle("q", handler);
  const sent = (verb: string): Sent[] => server.sent.filter(({ path, method }) => path.includes("/job/") && (path.endsWith(`/${verb}`) || method === verb));
  return { server, worker, ends, lines, sent };
}

test("what becomes of a job", async () => {
  const cases: Record<string, [Handler, string, (string | undefined)?, number?]> = {
    returns: [() => "anything", "acked"],
    fails: [() => { throw new Error("boom"); }, "released", "attempt 1: boom", 60],
    rejects: [async () => Promise.reject(new TypeError("bad")), "released", "attempt 1: bad", 60],
    panics: [() => { throw "ouch"; }, "released", "attempt 1: panic: ouch", 60],
    throwsNothing: [() => { throw undefined; }, "released", "attempt 1: panic: undefined", 60],
    retries: [() => { throw new RetryAfter(77, new Error("busy")); }, "released", "attempt 1: busy", 77],
    snoozes: [() => { throw new Snooze(88.5); }, "snoozed", undefined, 88.5],
    permanent: [() => { throw new Permanent("never"); }, "buried", "attempt 1: never"],
    json: [(job) => job.json(), "buried", "attempt 1: the body cannot be read: this is no JSON"],
    acks: [async (job) => { await job.ack(); throw new Error("late"); }, "acked"],
    releases: [async (job) => { await job.release({ delay: 5, reason: "mine" }); }, "released", "mine", 5],
    buries: [async (job) => { await job.bury("mine"); throw new Error("late"); }, "buried", "mine"],
  };
  const backoff = (): number => 60;
  const { client, worker, ends, double } = onDouble((job, context) => cases[job.text()]?.[0](job, context), { backoff });
  for (const name of Object.keys(cases)) await client.publish("q", name, { tries: 3 });
  await worker.runUntilIdle();
  assert.equal(ends.length, Object.keys(cases).length);
  const left = new Map<string, { reason: string | undefined; state: string; tries: number; delay: number }>();
  for (const state of ["ready", "delayed", "running", "dead"] as const) {
    for await (const job of client.jobs("q", state, { data: true })) {
      const delay = ((job.dueAt as Date).getTime() - double.now.getTime()) / 1000;
      left.set(String(job.data), { reason: job.reason, state, tries: job.remainTries, delay });
    }
  }
  for (const [name, [, outcome, reason, delay]] of Object.entries(cases)) {
    assert.equal(ends.find(({ data }) => data === name)?.outcome, outcome, name);
    const job = left.get(name);
    assert.equal(job?.reason, reason, name);
    if (outcome === "acked") assert.equal(job, undefined, name);
    if (outcome === "buried") assert.equal(job?.state, "dead", name);
    if (delay !== undefined) assert.deepEqual([job?.state, job?.delay, job?.tries], ["delayed", delay, outcome === "snoozed" ? 3 : 2], name);
  }
});

test("the attempt is one more than the reason says, and back-off follows it", async () => {
  const seen: number[] = [];
  const { client, worker, double } = onDouble(async (job) => {
    seen.push(await job.attempt());
    throw new Error("boom");
  }, { backoff: [10, 100] });
  await client.publish("q", "x", { tries: 3 });
  for (const pause of [0, 11, 110]) {
    double.advance(pause);
    await worker.runUntilIdle();
  }
  assert.deepEqual(seen, [1, 2, 3]);
  for await (const job of client.jobs("q", "dead")) assert.equal(job.reason, "attempt 3: boom");
});

test("a back-off of the program that fails does not stop the worker", async () => {
  for (const backoff of [() => NaN, () => { throw new Error("oh"); }]) {
    const { client, worker, ends, lines } = onDouble(() => { throw new Error("boom"); }, { backoff });
    await client.publish("q", "x", { tries: 3 });
    await worker.runUntilIdle();
    assert.deepEqual(ends.map(({ outcome }) => outcome), ["released"]);
    assert.equal(lines.of("back-off").length, 1);
  }
});

test("a hook that fails is logged, and changes nothing", async () => {
  const fail = (): never => { throw new Error("oh"); };
  const { client, worker, lines } = onDouble(() => undefined, { hooks: { poll: fail, start: fail, finish: fail, drain: fail } });
  await client.publish("q", "x");
  await worker.runUntilIdle();
  assert.equal((await client.deadLetter("q")).size + (await client.size("q")), 0);
  assert.deepEqual(new Set(lines.of("a hook").map(({ fields }) => fields.hook)), new Set(["poll", "start", "finish", "drain"]));
});

test("middleware wraps handlers: the first is the outermost, and a throw is an error there", async () => {
  const seen: string[] = [];
  const around = (name: string): Middleware => async (job, _, next) => {
    seen.push(`${name} ${job.text()}`);
    try {
      await next();
    } catch (error) {
      assert.ok(error instanceof PanicError);
      seen.push(`${name} ${error.message}`);
      throw error;
    }
  };
  const { client, worker, ends } = onDouble(() => { throw { odd: 1 }; });
  worker.use(around("outer"), around("inner"));
  await client.publish("q", "x");
  await worker.runUntilIdle();
  assert.deepEqual(seen, ["outer x", "inner x", 'inner panic: {"odd":1}', 'outer panic: {"odd":1}']);
  assert.equal(ends[0]?.outcome, "released");
});

test("a middleware that does not call next, or catches, decides for the job", async () => {
  const { client, worker, ends } = onDouble(() => assert.fail("it is not called"));
  worker.use((_job, _context, _next) => undefined);
  await client.publish("q", "x");
  await worker.runUntilIdle();
  assert.equal(ends[0]?.outcome, "acked");
});

test("a publish within a handler carries its trace on, and no other's", async () => {
  const { client, worker } = onDouble(async (job) => {
    await new Promise((resolve) => setTimeout(resolve, job.text() === "a" ? 20 : 5));
    await client.publish("next", job.text());
    await withTraceparent("00-own", () => client.publish("next", `${job.text()} own`));
    await client.publish("next", `${job.text()} said`, { traceparent: "00-said" });
  });
  await client.publish("q", "a", { traceparent: "00-a" });
  await client.publish("q", "b", { traceparent: "00-b" });
  await client.publish("q", "none");
  await worker.runUntilIdle();
  const traces: Record<string, string | undefined> = {};
  for (const job of await client.consume("next", { count: 100 })) traces[job.text()] = job.traceparent;
  assert.deepEqual(traces, {
    a: "00-a", "a own": "00-own", "a said": "00-said", b: "00-b", "b own": "00-own", "b said": "00-said", none: undefined,
    "none own": "00-own", "none said": "00-said",
  });
});

test("a job is touched at a third of its ttr until its handler has returned, with the receipt of the last touch", async () => {
  let end = (): void => undefined;
  let receipts = 1;
  const { server, worker, ends, sent } = scripted(["01A"], (request) => {
    return request.path.endsWith("touch") ? answered(200, { receipt: `2-${++receipts}`, until: null }) : answered(204);
  }, () => new Promise<void>((resolve) => (end = resolve)));
  const done = worker.run();
  await server.clock.advance(100_000);
  const touches = sent("touch");
  assert.ok(touches.length >= 9 && touches.length <= 11, `${touches.length} touches in 100 s`);
  touches.forEach((touch, i) => assert.equal(touch.query.get("receipt"), `2-${i + 1}`));
  end();
  await server.clock.advance(5);
  assert.deepEqual(sent("DELETE").map(({ query }) => query.get("receipt")), [`2-${receipts}`]);
  worker.stop();
  await server.clock.advance(0);
  await done;
  assert.deepEqual(ends, [["01A", "acked"]]);
  assert.equal(server.clock.waiting, 0, "timers that are left");
});

test("a job whose touches fail is lost when its ttr has passed, and nothing more is sent for it", async () => {
  const reasons: CancelledError[] = [];
  const { server, worker, ends, lines, sent } = scripted(["01A"], () => answered(502), (_, { signal }) => new Promise((_resolve, reject) => {
    signal.addEventListener("abort", () => {
      reasons.push(signal.reason as CancelledError);
      reject(signal.reason as Error);
    });
  }));
  const done = worker.run();
  await server.clock.advance(29_999);
  assert.deepEqual(reasons, []);
  const touches = sent("touch").length;
  assert.ok(touches > 3, `${touches} touches`);
  await server.clock.advance(2);
  assert.deepEqual((reasons as CancelledError[]).map(({ why }) => why), ["lost"]);
  await server.clock.advance(60_000);
  assert.deepEqual(ends, [["01A", "lost"]]);
  assert.ok(server.sent.every(({ path, at }) => !path.includes("01A") || at <= 31_000));
  assert.equal(lines.of("a job is lost").length, 1);
  worker.stop();
  await server.clock.advance(0);
  await done;
});

test("after a touch whose answer was lost the receipt that is valid is looked for", async () => {
  let end = (): void => undefined;
  const { server, worker, ends, sent } = scripted(["01A"], (request) => {
    if (request.path.endsWith("touch")) return RESET;
    if (request.query.get("verbose")) return answered(200, handed("01A", { receipt: "2-9" }));
    return request.query.get("receipt") === "2-9" ? answered(204) : GONE;
  }, () => new Promise<void>((resolve) => (end = resolve)));
  const done = worker.run();
  await server.clock.advance(11_100);
  assert.ok(sent("touch").length > 0);
  end();
  await server.clock.advance(1000);
  assert.deepEqual(ends, [["01A", "acked"]]);
  worker.stop();
  await server.clock.advance(0);
  await done;
});

test("a batch of acks: stale is lost, unless a lost touch may have made its receipt old", async () => {
  const ends: (() => void)[] = [];
  const batches: unknown[] = [];
  const { server, worker, ends: outcomes } = scripted(["01A", "01B", "01C"], (request) => {
    if (request.path.endsWith("01A/touch")) return RESET;
    if (request.path.endsWith("touch")) return answered(200, { receipt: "2-5" });
    if (request.query.get("verbose")) return answered(200, handed("01A", { receipt: "2-9" }));
    if (request.method === "DELETE") return request.query.get("receipt") === "2-9" ? answered(204) : GONE;
    batches.push(JSON.parse(request.text));
    return answered(200, { acked: 1, stale: ["01A", "01B"] });
  }, () => new Promise<void>((resolve) => ends.push(resolve)));
  const done = worker.run();
  await server.clock.advance(11_100);
  for (const end of ends) end();
  await server.clock.advance(1000);
  assert.deepEqual(outcomes.sort(), [["01A", "acked"], ["01B", "lost"], ["01C", "acked"]]);
  assert.deepEqual(batches, [{ jobs: [{ id: "01A", receipt: "2-1" }, { id: "01B", receipt: "2-5" }, { id: "01C", receipt: "2-5" }] }]);
  worker.stop();
  await server.clock.advance(0);
  await done;
});

test("a release whose answer was lost is repeated, and a 409 means that it was done", async () => {
  let releases = 0;
  const { server, worker, ends } = scripted(["01A"], (request) => {
    if (request.query.get("verbose")) return answered(200, handed("01A", { reason: "attempt 4: x" }));
    return releases++ === 0 ? RESET : GONE;
  }, () => { throw new Error("boom"); });
  const done = worker.run();
  await server.clock.advance(1000);
  assert.deepEqual([releases, ends], [2, [["01A", "released"]]]);
  assert.equal(server.sent.at(-1)?.text, "attempt 5: boom");
  worker.stop();
  await server.clock.advance(0);
  await done;
});

test("32 touches are in flight at most", async () => {
  const open: (() => void)[] = [];
  const ids = Array.from({ length: 100 }, (_, i) => `01-${i}`);
  const server = new Scripted(async (sent, n) => {
    if (n === 0) return answered(200, ids.map((id) => handed(id)));
    if (!sent.path.endsWith("touch")) return answered(204);
    await new Promise<void>((resolve) => open.push(resolve));
    return answered(200, { receipt: "2-2" });
  });
  const ends: (() => void)[] = [];
  const worker = new Worker(server.client(), { concurrency: 100, signals: false, ackWindow: 0, logger: new Lines() });
  worker.handle("q", () => new Promise<void>((resolve) => ends.push(resolve)));
  const done = worker.run();
  await server.clock.advance(11_100);
  const seen = [];
  while (open.length > 0) {
    seen.push(open.length);
    for (const answer of open.splice(0)) answer();
    await server.clock.advance(0);
  }
  assert.deepEqual(seen, [32, 32, 32, 4]);
  worker.stop();
  for (const end of ends) end();
  await server.clock.advance(100);
  await done;
});

test("an event loop that hung for a third of ttr is told once", async () => {
  const { server, worker, lines } = scripted([], () => answered(204), () => undefined);
  const done = worker.run();
  await server.clock.advance(20_000);
  assert.deepEqual(lines.of("event loop"), []);
  await server.clock.hang(9000);
  assert.deepEqual(lines.of("event loop"), []);
  await server.clock.hang(12_000);
  await server.clock.hang(12_000);
  assert.equal(lines.of("event loop").length, 1);
  assert.ok((lines.of("event loop")[0]?.fields.seconds as number) >= 10);
  worker.stop();
  await server.clock.advance(0);
  await done;
});

test("a handler that has not returned when grace ends: its job is given back, and run rejects", async () => {
  const reasons: string[] = [];
  const { server, worker, ends, sent, lines } = scripted(["01A"], willing, (_, { signal }) => {
    signal.addEventListener("abort", () => reasons.push((signal.reason as CancelledError).why));
    return new Promise(() => undefined);
  });
  const done = errorOf(worker.run(), UncleanError);
  await server.clock.advance(100);
  worker.stop();
  await server.clock.advance(24_999);
  assert.deepEqual(reasons, []);
  await server.clock.advance(2);
  assert.deepEqual(reasons, ["drain"]);
  await server.clock.advance(5000);
  assert.equal((await done).handlers, 1);
  assert.deepEqual(sent("release").map(({ query, text }) => [query.get("spend"), query.get("delay"), text]), [["0", null, ""]]);
  assert.deepEqual(ends, [["01A", "returned"]]);
  assert.equal(lines.of("had not returned").length, 1);
});

test("a second stop ends drain and grace", async () => {
  const { server, worker } = scripted(["01A"], willing, () => new Promise(() => undefined));
  const done = errorOf(worker.run(), UncleanError);
  await server.clock.advance(100);
  worker.stop();
  await settled();
  worker.stop();
  await server.clock.advance(0);
  await done;
});

test("an outage with many results to send, and many calls with a handler's signal, warn of no leak", async () => {
  const warnings: Error[] = [];
  const warn = (warning: Error): void => void warnings.push(warning);
  process.on("warning", warn);
  let down = true;
  const ids = Array.from({ length: 30 }, (_, i) => `01-${i}`);
  const { server, worker, ends } = scripted(ids, (sent) => {
    if (sent.path.endsWith("/size")) return answered(200, { size: 1 });
    return down ? answered(502) : sent.query.get("verbose") ? answered(200, handed("01A")) : RELEASED;
  }, async (_, { signal }) => {
    await Promise.all(ids.map(() => server.client().size("q", { signal })));
    throw new Error("boom");
  }, { concurrency: 30 });
  const done = worker.run();
  await server.clock.advance(3000);
  down = false;
  await server.clock.advance(10_000);
  assert.equal(ends.length, 30);
  worker.stop();
  await server.clock.advance(0);
  await done;
  process.off("warning", warn);
  assert.deepEqual(warnings, []);
});

test("a time limit: an error within grace counts as it, and the log is told each minute of who ignores it", async () => {
  const { server, worker, sent, lines, ends } = scripted(["01A", "01B"], willing, (job, { signal }) => job.id === "01B" ? new Promise(() => undefined) : new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(new Error("stopped")));
  }), { timeLimit: 60, grace: 7, backoff: () => 9, concurrency: 2 });
  const done = errorOf(worker.run(), UncleanError);
  await server.clock.advance(60_001);
  assert.deepEqual(sent("release").map(({ text, path }) => [path.includes("01A"), text]), [[true, "attempt 1: time limit"]]);
  await server.clock.advance(7000);
  assert.equal(sent("release").at(-1)?.text, "attempt 1: time limit");
  const touches = sent("touch").length;
  await server.clock.advance(130_000);
  assert.equal(sent("touch").length, touches, "touches after the release");
  assert.equal(lines.of("after its time limit").length, 3);
  assert.deepEqual(ends, [["01A", "released"], ["01B", "released"]]);
  worker.stop();
  worker.stop();
  await server.clock.advance(1000);
  await done;
});

test("an outage is told once, and a poll that comes back empty too soon counts as one", async () => {
  let away = 0;
  let back = 0;
  let ask = (): Answering => NOTHING;
  const server = new Scripted(() => ask());
  const lines = new Lines();
  const hooks = { away: () => void away++, back: () => void back++ };
  const worker = new Worker(server.client(), { signals: false, logger: lines, hooks }).handle("q", () => undefined);
  const done = errorOf(worker.run(), DormouseError);
  await server.clock.advance(60_000);
  assert.deepEqual([away, back], [1, 0]);
  assert.ok(server.sent.length < 25, `${server.sent.length} polls in a minute`);
  let handedOut = false;
  ask = () => {
    if (handedOut) return "never";
    handedOut = true;
    return answered(200, handed("01A"));
  };
  await server.clock.advance(10_000);
  assert.equal(back, 1);
  assert.deepEqual(lines.lines.filter(({ level }) => level === "warn").length, 1);
  ask = () => answered(401, { error: "invalid token" });
  await server.clock.advance(36_000); // a poll without an answer is given up 10 s after its time-out
  assert.equal((await done).type, "unauthorized");
});

test("a worker says what it was made with that is wrong", async () => {
  const client = new Double().client();
  for (const options of [
    { ttr: 2 }, { ttr: 3.5 }, { concurrency: 0 }, { concurrency: NaN }, { poll: 0 }, { drain: -1 }, { grace: NaN }, { timeLimit: 0 },
    { backoff: [] }, { backoff: [-1] }, { weights: { q: 0 } }, { weights: { q: 1001 } },
  ]) {
    assert.throws(() => new Worker(client, options), { type: "invalid" }, JSON.stringify(options));
  }
  assert.throws(() => new Worker(client).handle("q", undefined as never), { type: "invalid" });
  await errorOf(new Worker(client).run(), DormouseError);
  await errorOf(new Worker(client, { weights: { a: 1 } }).handle("b", () => undefined).run(), DormouseError);
  await errorOf(new Worker(client, { weights: { a: 1, b: 1 } }).handle("b", () => undefined).run(), DormouseError);
  await errorOf(new Worker(client, { logger: new Lines() }).handle("a/b", () => undefined).runUntilIdle(), DormouseError);
  const worker = new Worker(client, { signals: false }).handle("q", () => undefined);
  const done = worker.run();
  assert.equal((await errorOf(worker.run(), DormouseError)).type, "invalid");
  worker.stop();
  await done;
});

test("signals stop a worker while it runs, and a signal of the caller's does too", async () => {
  const client = new Double().client();
  const before = process.listenerCount("SIGTERM");
  const worker = new Worker(client, { logger: new Lines() }).handle("q", () => undefined);
  const first = worker.run();
  assert.equal(process.listenerCount("SIGTERM"), before + 1);
  process.emit("SIGTERM");
  await first;
  assert.equal(process.listenerCount("SIGTERM"), before);
  const end = new AbortController();
  const second = worker.run({ signal: end.signal });
  await settled();
  end.abort();
  await second;
  await worker.run({ signal: AbortSignal.abort() });
});

test("by hand nothing is sent for a job that is lost, not even a look after a touch whose answer was lost", async () => {
  const errors: string[] = [];
  const { server, worker, ends, sent } = scripted(["01A"], (one) => (one.path.endsWith("touch") ? RESET : willing(one)), async (job, { signal }) => {
    await new Promise((resolve) => { signal.addEventListener("abort", resolve); });
    errors.push((await errorOf(job.ack(), DormouseError)).type);
  });
  const run = worker.run();
  await server.clock.advance(31_000);
  worker.stop();
  await run;
  assert.deepEqual([errors, ends], [["lost"], [["01A", "lost"]]]);
  assert.deepEqual([sent("GET"), sent("DELETE")], [[], []]);
});

test("a call by hand that is refused with the receipt that was found too is a loss", async () => {
  const seen: unknown[] = [];
  const answer = (one: Sent): Answering => {
    if (one.path.endsWith("touch")) return RESET;
    return one.query.get("verbose") ? answered(200, handed("01A", { receipt: "2-9" })) : GONE;
  };
  const { server, worker, ends, sent } = scripted(["01A"], answer, async (job, { signal }) => {
    await errorOf(job.touch(30), DormouseError);
    seen.push((await errorOf(job.ack(), DormouseError)).type, signal.aborted);
  });
  const run = worker.run();
  await server.clock.advance(1000);
  worker.stop();
  await run;
  assert.deepEqual([seen, ends], [["lost", true], [["01A", "lost"]]]);
  assert.deepEqual(sent("DELETE").map(({ query }) => query.get("receipt")), ["2-1", "2-9"]);
});
