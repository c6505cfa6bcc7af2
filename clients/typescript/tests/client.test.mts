import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, DormouseError, type ErrorType, type PublishOptions } from "dormouse-client";
import { answered, type Answering, errorOf, handed, NOTHING, PUBLISHED, Scripted, settled } from "./support.mjs";

const REFUSED = Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED", syscall: "connect" });
const RESET = Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET", syscall: "read" });

test("each publish has a key of its own, and its repeats share it", async () => {
  const server = new Scripted((_, n) => (n % 3 === 2 ? PUBLISHED : answered(502)));
  const client = server.client();
  for (let i = 0; i < 2; i++) {
    const call = client.publish("q", "x");
    await server.clock.advance(1000);
    assert.equal((await call).jobId, "01A");
  }
  const keys = server.sent.map(({ headers }) => headers["Idempotency-Key"]);
  assert.equal(keys.length, 6);
  assert.deepEqual([new Set(keys.slice(0, 3)).size, new Set(keys.slice(3)).size, new Set(keys).size], [1, 1, 2]);
  assert.match(keys[0] as string, /^[0-9a-f]{32}$/);
});

test("pauses grow from half and all of 0.1 s to 5 s, and end with retryFor", async () => {
  const server = new Scripted(() => answered(502));
  const client = server.client();
  const call = errorOf(client.size("q"), DormouseError);
  await server.clock.advance(60_000);
  assert.equal((await call).type, "unavailable");
  const at = server.sent.map((sent) => sent.at);
  at.slice(1).forEach((later, n) => {
    const gap = later - (at[n] as number);
    const longest = Math.min(5000, 100 * 2 ** n);
    assert.ok(gap >= longest / 2 && gap <= longest, `pause ${n}: ${gap} ms`);
  });
  assert.ok(at.length >= 8 && (at.at(-1) as number) - 1000 <= 30_000, `${at.length} requests`);
});

test("a pause is never less than Retry-After, and one beyond retryFor is not waited for", async () => {
  const server = new Scripted((_, n) => (n === 0 ? answered(503, "", { "Retry-After": "7" }) : PUBLISHED));
  const call = server.client().publish("q", "x");
  await server.clock.advance(6999);
  assert.equal(server.sent.length, 1);
  await server.clock.advance(2);
  await call;
  const slow = new Scripted(() => answered(429, { msg: "slowly" }, { "Retry-After": "31" }));
  const error = await errorOf(slow.client().publish("q", "x"), DormouseError);
  assert.deepEqual([error.type, error.retryAfter, error.message, slow.sent.length], ["limited", 31, "slowly", 1]);
});

test("what may have been done is repeated only where that is safe", async () => {
  const calls: Record<string, (client: Client) => Promise<unknown>> = {
    consume: (client) => client.consume("q"),
    respawn: (client) => client.respawn("q", ["a"]),
    respawnOldest: (client) => client.respawnOldest("q", 1),
    deleteDead: (client) => client.deleteDead("q", 1),
    destroy: (client) => client.destroy("q"),
  };
  const faults: Answering[] = [REFUSED, RESET, answered(408), answered(500), answered(502), answered(504), answered(507)];
  for (const [name, call] of Object.entries(calls)) {
    for (const fault of faults) {
      const server = new Scripted(() => fault);
      await errorOf(call(server.client()), DormouseError);
      assert.equal(server.sent.length, 1, name);
    }
    const server = new Scripted(() => answered(503));
    const done = errorOf(call(server.client({ retryFor: 2 })), DormouseError);
    await server.clock.advance(3000);
    await done;
    assert.ok(server.sent.length > 2, `${name} after 503`);
  }
  for (const fault of faults) {
    const server = new Scripted((_, n) => (n === 0 ? fault : answered(200, { size: 3 })));
    const size = server.client().size("q");
    await server.clock.advance(200);
    assert.equal(await size, 3);
  }
});

test("timeout is for one request", async () => {
  const server = new Scripted(() => "never");
  const call = errorOf(server.client({ timeout: 2, retryFor: 0 }).size("q"), DormouseError);
  await server.clock.advance(1999);
  assert.equal(server.clock.waiting, 1);
  await server.clock.advance(1);
  const error = await call;
  assert.deepEqual([error.type, error.status, error.retryable], ["timeout", undefined, true]);
  assert.equal(server.clock.waiting, 0, "timers that are left");
});

test("a signal ends a call, also in a pause", async () => {
  const why = new Error("enough");
  for (const answer of ["never", answered(502)] as const) {
    const server = new Scripted(() => answer);
    const end = new AbortController();
    const call = errorOf(server.client().size("q", { signal: end.signal }), Error);
    await settled();
    end.abort(why);
    assert.equal(await call, why);
    assert.equal(server.sent.length, 1);
    assert.equal(server.clock.waiting, 0, "timers that are left");
  }
  const server = new Scripted(() => PUBLISHED);
  assert.equal(await errorOf(server.client().publish("q", "x", { signal: AbortSignal.abort(why) }), Error), why);
  assert.equal(server.sent.length, 0);
});

test("each answer has its error", async () => {
  const cases: [number, unknown, ErrorType, boolean][] = [
    [400, { error: "x" }, "invalid", false], [401, { error: "x" }, "unauthorized", false], [403, { error: "x" }, "forbidden", false],
    [404, { error: "job not found" }, "not_found", false], [404, { error: "api not found" }, "unsupported", false],
    [409, { error: "the job is not yours any more" }, "lost", false], [409, { error: "the key is taken" }, "conflict", false],
    [409, { error: "a request with this idempotency key is under way" }, "busy", true], [413, { error: "x" }, "too_large", false],
    [422, { error: "x" }, "key_reused", false], [429, { msg: "x" }, "limited", true], [507, { error: "x" }, "full", true],
    [502, "x", "unavailable", true], [503, "x", "unavailable", true], [504, "", "unavailable", true], [500, "x", "server", true],
    [599, "x", "server", true], [408, "x", "timeout", true], [302, "", "protocol", false], [418, "x", "protocol", false],
    [200, "<html>", "protocol", false], [200, { other: 1 }, "protocol", false], [200, [], "protocol", false],
  ];
  for (const [status, body, type, retryable] of cases) {
    const server = new Scripted(() => answered(status, body, { "X-Request-ID": "r-1" }));
    const error = await errorOf(server.client({ retryFor: 0 }).size("q"), DormouseError);
    assert.deepEqual([error.type, error.retryable, error.status, error.requestId], [type, retryable, status, "r-1"]);
    assert.ok(error.message, `a message of ${status}`);
    assert.equal(error.op, "size q");
  }
});

test("the text of an answer that is no JSON is cut to 200 bytes in whole characters", async () => {
  const server = new Scripted(() => answered(502, `<${"é".repeat(400)}`));
  const { message } = await errorOf(server.client({ retryFor: 0 }).size("q"), DormouseError);
  assert.equal(message, `<${"é".repeat(99)}`);
});

test("the token is in a header and nowhere else", async () => {
  const server = new Scripted((sent) => (sent.method === "GET" ? answered(200, handed("01A")) : answered(400, { error: "no" })));
  const client = server.client();
  const [job] = await client.consume("q");
  const error = await errorOf(client.publish("q", "x"), DormouseError);
  for (const shown of [client, job, error]) {
    assert.ok(!inspect(shown, { depth: 9, showHidden: true }).includes("s3cret"));
    assert.ok(!(JSON.stringify(shown) ?? "").includes("s3cret"));
  }
  for (const { headers, url } of server.sent) {
    assert.equal(headers["X-Token"], "s3cret");
    assert.ok(!url.includes("s3cret"));
    assert.equal(headers["User-Agent"], "dormouse-typescript/0.1.0");
  }
});

test("what would reach another path, or no server at all, is refused before it is sent", async () => {
  const server = new Scripted(() => PUBLISHED);
  const client = server.client();
  for (const queue of ["", "a/b", "..", "a,b", "ü", "a".repeat(256), "a?b"]) {
    assert.equal((await errorOf(client.publish(queue, "x"), DormouseError)).type, "invalid");
  }
  for (const id of ["", "x".repeat(256), "\ud800"]) {
    assert.equal((await errorOf(client.get("q", id), DormouseError)).type, "invalid");
  }
  assert.equal(server.sent.length, 0);
  await errorOf(client.getByKey("q", ".."), DormouseError);
  await errorOf(client.getByKey("q", "a/b?c"), DormouseError);
  assert.deepEqual(server.sent.map(({ path }) => path), ["http://server/api/ns/q/key/%2E%2E", "http://server/api/ns/q/key/a%2Fb%3Fc"]);
  for (const options of [
    { url: "server:7777" }, { url: "ftp://server" }, { url: "http://server/?a=b" }, { url: "http://user:word@server" }, { url: "" },
    { namespace: "" }, { namespace: "a/b" }, { token: "a\nb" }, { timeout: 0 }, { timeout: NaN }, { retryFor: -1 }, { retryFor: 541 },
  ]) {
    assert.throws(() => server.client(options), { type: "invalid" }, JSON.stringify(options));
  }
});

test("a body is a text or any bytes", async () => {
  const server = new Scripted(() => PUBLISHED);
  const client = server.client();
  const six = Uint8Array.from([1, 2, 3, 4, 5, 6]);
  for (const data of [six, six.buffer, new Uint16Array(six.buffer), new DataView(six.buffer)]) {
    await client.publish("q", data);
    assert.deepEqual([...(server.sent.at(-1)?.body ?? [])], [1, 2, 3, 4, 5, 6]);
  }
  await client.publish("q", six.subarray(2, 4));
  assert.deepEqual([...(server.sent.at(-1)?.body ?? [])], [3, 4]);
  await client.publish("q", "é");
  assert.deepEqual([...(server.sent.at(-1)?.body ?? [])], [0xc3, 0xa9]);
});

test("what the types forbid is refused in JavaScript", async () => {
  const server = new Scripted(() => PUBLISHED);
  const client = server.client();
  const missing = undefined as never;
  const calls = [
    client.publish(missing, "x"), client.publish("q", missing), client.publish("q", 5 as never), client.publish("q", {} as never),
    client.publishMany("q", [{ data: null as never }]), client.cancel("q", missing), client.get("q", null as never), client.consume([missing]),
    client.publish("q", "x", { attributes: { a: 5 as never } }),
  ];
  for (const call of calls) assert.equal((await errorOf(call, DormouseError)).type, "invalid");
  assert.throws(() => server.client({ namespace: missing }), { type: "invalid" });
  assert.equal(server.sent.length, 0);
});

test("durations are seconds, instants a Date, milliseconds or a text", async () => {
  const server = new Scripted(() => PUBLISHED);
  const client = server.client();
  const cases: [PublishOptions, string][] = [
    [{ delay: 0.1 + 0.2 }, "delay=0.3"], [{ delay: 1.0001 }, "delay=1.001"], [{ delay: 60 }, "delay=60"], [{ ttl: 0 }, "ttl=0"],
    [{ at: new Date(1_800_000_000_250) }, "at_ms=1800000000250"], [{ at: 1_800_000_000_250.5 }, "at_ms=1800000000251"],
    [{ at: new Date(-5) }, "at_ms=0"], [{ at: "2027-01-01T08:00:00+01:00" }, "at=2027-01-01T08%3A00%3A00%2B01%3A00"],
    [{ tries: 3, key: "a b", onConflict: "fail" }, "tries=3&key=a+b&on_conflict=fail"],
  ];
  for (const [options, query] of cases) {
    await client.publish("q", "x", options);
    assert.equal(server.sent.at(-1)?.url, `http://server/api/ns/q/jobs?${query}`);
  }
  const count = server.sent.length;
  for (const options of [
    { delay: -1 }, { delay: NaN }, { delay: Infinity }, { ttl: -1 }, { at: NaN }, { at: new Date(NaN) }, { at: "tomorrow" },
    { at: "2027-01-01T08:00:00" }, { tries: 1.5 }, { idempotencyKey: "" }, { idempotencyKey: "ü" }, { idempotencyKey: "a\nb" },
    { attributes: { A: "x" } }, { attributes: { a: "" } }, { attributes: { a: "\ud800" } }, { attributes: { "": "x" } },
  ]) {
    assert.equal((await errorOf(client.publish("q", "x", options), DormouseError)).type, "invalid", JSON.stringify(options));
  }
  await errorOf(client.publishJSON("q", undefined), DormouseError);
  await errorOf(client.publishJSON("q", 1n), DormouseError);
  assert.equal(server.sent.length, count, "requests of what is refused");
});

test("attributes go in headers where these can carry them, else in JSON", async () => {
  const server = new Scripted((sent) => (sent.path.endsWith("batch") ? answered(201, { jobs: [{ job_id: "01B" }] }) : PUBLISHED));
  const client = server.client();
  await client.publish("q", Buffer.from([255]), { attributes: { a: "b c" }, traceparent: "00-1" });
  assert.deepEqual(server.sent[0]?.headers["Job-Attr-a"], "b c");
  assert.deepEqual(server.sent[0]?.headers["Job-Attr-traceparent"], "00-1");
  assert.equal(server.sent[0]?.headers["Enable-Job-Version"], "YES");
  assert.equal((await client.publish("q", Buffer.from([255]), { attributes: { a: " ü" }, delay: 1.5, key: "k" })).jobId, "01B");
  assert.deepEqual(JSON.parse(server.sent[1]?.text ?? ""), [{ data: "/w==", delay: 1.5, key: "k", attributes: { a: " ü" } }]);
});

test("the error of publishMany has what was published, and an index of the whole call", async () => {
  const server = new Scripted((sent, n) => {
    const count = (JSON.parse(sent.text) as unknown[]).length;
    if (n === 1) return answered(409, { error: "the key is taken", job_id: "01K", index: 5 });
    return answered(201, { jobs: Array.from({ length: count }, (_, i) => ({ job_id: `01-${i}` })) });
  });
  const jobs = Array.from({ length: 100 }, (_, i) => ({ json: i }));
  const error = await errorOf(server.client().publishMany("q", jobs), DormouseError);
  assert.deepEqual([error.type, error.index, error.published?.length, error.jobId], ["conflict", 69, 64, "01K"]);
  assert.equal(new Set(server.sent.map(({ headers }) => headers["Idempotency-Key"])).size, 2);
  const few = await errorOf(server.client().publishMany("q", [{ data: "x" }, { data: "x", delay: -1 }]), DormouseError);
  assert.deepEqual([few.type, few.index, server.sent.length], ["invalid", 1, 2]);
  assert.deepEqual(await server.client().publishMany("q", []), []);
});

test("a publish whose answer is of another number of jobs is no answer", async () => {
  const server = new Scripted(() => answered(201, { jobs: [] }));
  assert.equal((await errorOf(server.client().publishMany("q", [{ data: "x" }]), DormouseError)).type, "protocol");
});

test("lists ask for a page when it is needed, also after an empty one", async () => {
  const queue = (name: string): unknown => ({ queue: name, ready: 1, delayed: null, running: 0, dead: 0, oldest_ready_age: 1.5, paused: false });
  const pages = [{ queues: [queue("a"), queue("b")], cursor: "1" }, { queues: [], cursor: "2" }, { queues: [queue("c")], cursor: null }];
  const server = new Scripted((_, n) => answered(200, pages[n]));
  const seen: [string, number][] = [];
  for await (const { queue: name, delayed } of server.client().queues()) {
    assert.equal(delayed, undefined);
    seen.push([name, server.sent.length]);
  }
  assert.deepEqual(seen, [["a", 1], ["b", 1], ["c", 3]]);
  assert.deepEqual(server.sent.map(({ query }) => query.get("cursor")), [null, "1", "2"]);
});

test("a consume without receipts is unsupported, without jobs it is empty", async () => {
  const { receipt: _, ...old } = handed("01A");
  const server = new Scripted((_, n) => (n === 0 ? answered(200, old) : NOTHING));
  assert.equal((await errorOf(server.client().consume("q"), DormouseError)).type, "unsupported");
  assert.deepEqual(await server.client().consume(["q", "r"], { count: 5, weights: [2, 1], timeout: 0.5, ttr: 2.5 }), []);
  assert.equal(server.sent[1]?.url, "http://server/api/ns/q,r?receipt=1&timeout=1&ttr=3&count=5&weights=2%2C1");
});

test("a touch whose answer was lost: the next call by hand finds the receipt", async () => {
  const server = new Scripted((sent) => {
    if (sent.path.endsWith("/ns/q")) return answered(200, handed("01A"));
    if (sent.path.endsWith("/touch")) return RESET;
    if (sent.query.get("verbose")) return answered(200, handed("01A", { receipt: "2-9", state: "running" }));
    return sent.query.get("receipt") === "2-9" ? answered(204) : answered(409, { error: "the job is not yours any more" });
  });
  const [job] = await server.client().consume("q", { ttr: 30 });
  await errorOf((job as NonNullable<typeof job>).touch(30), DormouseError);
  await job?.ack();
  assert.deepEqual(server.sent.slice(2).map(({ query }) => query.get("receipt")), ["2-1", "2-1", "2-9"]);
  // When the hand-over is over by our clock, what is found is somebody else's.
  const [late] = await server.client().consume("q", { ttr: 30 });
  await errorOf((late as NonNullable<typeof late>).touch(30), DormouseError);
  await server.clock.advance(30_000);
  assert.equal((await errorOf((late as NonNullable<typeof late>).ack(), DormouseError)).type, "lost");
});

test("a body that is no JSON is told without a piece of it", async () => {
  for (const data of ["{s3cret-body", Buffer.from([0xff, 0xfe])]) {
    const server = new Scripted(() => answered(200, handed("01A", { data: Buffer.from(data).toString("base64") })));
    const [job] = await server.client().consume("q");
    assert.throws(() => job?.json(), (error: Error) => error.name === "Permanent" && !error.message.includes("s3cret"));
  }
});

test("a client of the environment", async () => {
  const before = { ...process.env };
  try {
    delete process.env.DORMOUSE_NAMESPACE;
    assert.throws(() => Client.fromEnv(), { type: "invalid" });
    Object.assign(process.env, { DORMOUSE_URL: "http://elsewhere:1/x/", DORMOUSE_NAMESPACE: "n", DORMOUSE_TOKEN: "t" });
    const server = new Scripted(() => answered(200, { size: 1 }));
    await Client.fromEnv({ fetch: server.fetch }).size("q");
    assert.equal(server.sent[0]?.url, "http://elsewhere:1/x/api/n/q/size");
    assert.equal(server.sent[0]?.headers["X-Token"], "t");
  } finally {
    process.env = before;
  }
});
