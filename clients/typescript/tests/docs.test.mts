/** Every block of code in docs/clients/typescript.md is compiled by `tsc --strict`, and run against a double. */

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { createHmac } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { BasicTracerProvider } from "@opentelemetry/sdk-trace-base";
import { context, propagation, trace } from "@opentelemetry/api";
import { type Client, type Hooks, type Middleware, Worker } from "dormouse-client";
import { Double } from "dormouse-client/testing";
import { register } from "prom-client";
import { Lines } from "./support.mjs";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const PAGE = join(ROOT, "../../docs/clients/typescript.md");
const BUILT = join(ROOT, "build/docs");

/** A block of the page: a whole program, or a piece of one that has a client and a worker. */
interface Block {
  name: string;
  text: string;
  whole: boolean;
}

const blocks: Block[] = [...readFileSync(PAGE, "utf8").matchAll(/^```(ts|js)\n(.*?)^```$/gms)].map(([, language, text = ""], i) => ({
  name: `block${i}.${language === "js" ? "c" : "m"}${language}`,
  text,
  whole: language === "js" || text.startsWith("import "),
}));

const PRELUDE = `import { Client, DormouseError, Permanent, RetryAfter, Snooze, Worker } from "dormouse-client";
declare const given: { client: Client; worker: Worker };
`;

const double = new Double();
let server: Server;
let url: string;

before(async () => {
  // The double, for programs in other processes.
  server = createServer((request, response) => {
    if (request.url === "/report") return void response.end("pages of a report");
    void buffer(request).then(async (body) => {
      assert.equal(request.headers["x-token"], "TOKEN");
      const end = new AbortController();
      response.on("close", () => end.abort());
      const headers = request.headers as Record<string, string>;
      const answer = await double.fetch(`http://double${request.url}`, { method: request.method ?? "", headers, body, redirect: "manual", signal: end.signal });
      response.writeHead(answer.status).end(Buffer.from((await answer.arrayBuffer()) as Uint8Array));
    }).catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;

  rmSync(BUILT, { recursive: true, force: true });
  mkdirSync(BUILT, { recursive: true });
  for (const { name, text, whole } of blocks) {
    let here = text.replaceAll("http://127.0.0.1:7777", url);
    // A test gives it the port 0, and reads which one it has got.
    if (here.includes("server.listen(")) here += 'server.on("listening", () => console.log("listens on", JSON.stringify(server.address())));\n';
    // What a piece makes anew stands beside what it is given.
    const names = ["client", "worker"].filter((made) => !new RegExp(`^const ${made} `, "m").test(text));
    const piece = `${PRELUDE}export async function run(given: { client: Client; worker: Worker }) {
const { ${names.join(", ")} } = given;
${here}
return { client, worker };
}`.replace(/^declare const given.*\n/m, "");
    writeFileSync(join(BUILT, name), whole ? here : piece);
  }
  const options = { extends: "../../tsconfig.json", compilerOptions: { rootDir: ".", outDir: "out", noUnusedLocals: false, declaration: false }, include: ["."] };
  writeFileSync(join(BUILT, "tsconfig.json"), JSON.stringify(options));
  try {
    execFileSync(join(ROOT, "node_modules/.bin/tsc"), ["--project", BUILT], { encoding: "utf8", stdio: "pipe" });
  } catch (error) {
    throw new Error((error as { stdout: string }).stdout);
  }
});

after(() => {
  server.closeAllConnections();
  server.close();
});

function file({ name }: Block): string {
  return name.endsWith(".cjs") ? join(BUILT, name) : join(BUILT, "out", name.replace(/ts$/, "js"));
}

/** The block that has these words. */
function having(words: string): Block {
  const found = blocks.filter(({ text }) => text.includes(words));
  assert.equal(found.length, 1, `blocks with ${words}`);
  return found[0] as Block;
}

/** A program of the page, in a process of its own. */
function start(block: Block, more: Record<string, string> = {}): { child: ChildProcess; said: () => string; until: (words: string) => Promise<void>; ended: Promise<number | null> } {
  const env = { ...process.env, DORMOUSE_URL: url, DORMOUSE_NAMESPACE: "demo", DORMOUSE_TOKEN: "TOKEN", ...more };
  const child = spawn(process.execPath, [file(block)], { env, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  const looks = new Set<() => void>();
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (data: Buffer) => {
      said += data.toString();
      for (const look of looks) look();
    });
  }
  const ended = new Promise<number | null>((resolve) => child.on("close", resolve));
  const until = (words: string): Promise<void> =>
    new Promise((resolve, reject) => {
      const look = (): void => {
        if (said.includes(words)) resolve();
      };
      looks.add(look);
      look();
      void ended.then(() => reject(new Error(`it has ended without ${words}: ${said}`)));
    });
  return { child, said: () => said, until, ended };
}

function client(): Client {
  return double.client({ namespace: "demo", token: "TOKEN" });
}

test("the worker of a program runs, and ends at SIGTERM", async () => {
  const workers = blocks.filter(({ text }) => text.includes("await worker.run()"));
  assert.equal(workers.length, 1);
  for (const block of workers) {
    const { child, until, ended } = start(block);
    const { jobId } = await client().publish("mail", "to ann", { tries: 3 });
    await until("to ann");
    while (await client().get("mail", jobId).then(() => true, () => false)) await new Promise((resolve) => setTimeout(resolve, 10));
    child.kill("SIGTERM");
    assert.equal(await ended, 0);
  }
});

test("the program of require runs", async () => {
  const { ended, said } = start(having("require("));
  assert.equal(await ended, 0, said());
  assert.equal(said(), "0 jobs are ready\n");
});

test("the pieces run, one after the other", async () => {
  const pieces = blocks.filter(({ whole }) => !whole);
  assert.ok(pieces.length >= 5, `${pieces.length} pieces`);
  const said: string[] = [];
  const log = console.log;
  console.log = (...words: unknown[]) => void said.push(words.join(" "));
  try {
    let given = { client: client(), worker: new Worker(client(), { signals: false, logger: new Lines() }) };
    for (const piece of pieces) {
      if (piece.text.includes("client.consume(")) await client().destroy("orders");
      const { run } = (await import(pathToFileURL(file(piece)).href)) as { run: (all: typeof given) => Promise<typeof given> };
      given = await run(given);
    }
    // The handlers and the middleware of the page.
    await client().publish("mail", "no json");
    await client().publishJSON("mail", { to: "a@busy.example" }, { tries: 2 });
    await client().publish("reports", `${url}/report`);
    await given.worker.runUntilIdle();
    given.client.close();
  } finally {
    console.log = log;
  }
  const all = said.join("\n");
  for (const words of [
    /^01DOUBLE\d+ /m, /there is one already: 01DOUBLE/, /^nobody knows what to do with it: ben$/m, /^mail \d+ \d+$/m, /^17$/m,
  ]) {
    assert.match(all, words);
  }
  const reasons: string[] = [];
  for (const state of ["dead", "delayed"] as const) {
    for await (const job of client().jobs("mail", state)) reasons.push(job.reason ?? "");
  }
  assert.match(reasons.join("\n"), /the body cannot be read/);
  assert.match(reasons.join("\n"), /they ask to come later/);
});

test("the middleware for OpenTelemetry: publishes are below the span of the job", async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  trace.setGlobalTracerProvider(new BasicTracerProvider());
  const { traced } = (await import(pathToFileURL(file(having("startActiveSpan"))).href)) as { traced: Middleware };
  const client = new Double().client();
  const worker = new Worker(client, { signals: false }).use(traced);
  worker.handle("traced", async (job) => {
    await client.publish("below", "x");
    if (job.text() === "fails") throw new Error("boom");
  });
  const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  for (const body of ["works", "fails"]) await client.publish("traced", body, { traceparent: parent });
  await worker.runUntilIdle();
  const below = await client.consume("below", { count: 9 });
  assert.equal(below.length, 2);
  for (const { traceparent } of below) {
    const [, traceId, spanId] = (traceparent as string).split("-");
    assert.equal(traceId, parent.split("-")[1]);
    assert.notEqual(spanId, parent.split("-")[2]);
  }
  assert.equal((await client.deadLetter("traced")).size, 1);
});

test("the hooks for Prometheus count", async () => {
  const { hooks } = (await import(pathToFileURL(file(having("prom-client"))).href)) as { hooks: Hooks };
  const client = new Double().client();
  await client.publish("counted", "x");
  await new Worker(client, { signals: false, hooks }).handle("counted", () => undefined).runUntilIdle();
  assert.match(await register.metrics(), /jobs_total\{queue="counted",outcome="acked"\} 1/);
});

test("the receiver takes what was signed, and nothing else", async () => {
  const key = Buffer.alloc(32, 7);
  const { child, said, until, ended } = start(having("createServer"), { PORT: "0", SECRET: `whsec_${key.toString("base64")}` });
  await until("}\n");
  const port = /^listens on .*"port":(\d+)}$/m.exec(said())?.[1];
  const stamp = String(Math.floor(Date.now() / 1000));
  const mac = createHmac("sha256", key).update(`01A.${stamp}.to ann`).digest("base64");
  const send = async (body: string): Promise<number> => {
    const headers = { "Webhook-Id": "01A", "Webhook-Timestamp": stamp, "Webhook-Signature": `v1,${mac}` };
    return (await fetch(`http://127.0.0.1:${port}`, { method: "POST", body, headers })).status;
  };
  assert.equal(await send("to ann"), 204);
  await until("job 01A: to ann");
  assert.equal(await send("to bob"), 401);
  child.kill();
  await ended;
});

test("the test of the page holds", async () => {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  execFileSync(process.execPath, ["--test", file(having("a welcome is sent"))], { env, stdio: "pipe" });
});
