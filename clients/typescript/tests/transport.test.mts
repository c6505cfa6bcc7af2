/** The client's own connections, against a real one. */

import assert from "node:assert/strict";
import { execFile, spawnSync } from "node:child_process";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { type AddressInfo, createServer as createTcpServer, type Server as TcpServer, type Socket } from "node:net";
import { createServer as createTlsServer } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Client, type ClientOptions, DormouseError, Worker } from "dormouse-client";
import { errorOf, FakeClock, settled } from "./support.mjs";

async function listening(server: TcpServer): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function withServer(answer: (request: IncomingMessage, response: ServerResponse) => void, use: (url: string, server: Server) => Promise<void>): Promise<void> {
  const server = createServer(answer);
  try {
    await use(await listening(server), server);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** Answers on a connection whose server is the test. */
function send(socket: Socket, body: unknown): void {
  const text = JSON.stringify(body);
  socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`);
}

test("connections are kept", async () => {
  let opened = 0;
  await withServer((_, response) => response.end('{"size":1}'), async (url, server) => {
    server.on("connection", () => opened++);
    const client = new Client({ url, namespace: "ns" });
    for (let i = 0; i < 10; i++) await client.size("q");
    assert.equal(opened, 1);
    client.close();
  });
});

test("redirects are not followed", async () => {
  const paths: (string | undefined)[] = [];
  await withServer(
    (request, response) => {
      paths.push(request.url);
      response.writeHead(307, { Location: "/elsewhere" }).end();
    },
    async (url) => {
      const error = await errorOf(new Client({ url, namespace: "ns" }).size("q"), DormouseError);
      assert.deepEqual([error.type, error.status, paths], ["protocol", 307, ["/api/ns/q/size"]]);
    },
  );
});

test("a key of dots is no step of a path", async () => {
  let asked: string | undefined;
  await withServer(
    (request, response) => {
      asked = request.url;
      response.writeHead(404).end();
    },
    async (url) => {
      await errorOf(new Client({ url: `${url}/behind/`, namespace: "ns" }).getByKey("q", ".."), DormouseError);
      assert.equal(asked, "/behind/api/ns/q/key/%2E%2E?verbose=1");
    },
  );
});

test("a URL may have an IPv6 address", async (t) => {
  const server = createServer((_, response) => response.end('{"size":6}'));
  server.on("error", () => undefined);
  await new Promise<void>((resolve) => server.listen(0, "::1", resolve).on("error", () => resolve()));
  if (!server.listening) return t.skip("this machine has no IPv6");
  const client = new Client({ url: `http://[::1]:${(server.address() as AddressInfo).port}`, namespace: "ns" });
  assert.equal(await client.size("q"), 6);
  client.close();
  server.close();
});

test("an answer that breaks off is a network error, one that never comes a timeout", async () => {
  await withServer(
    (_, response) => {
      response.writeHead(200, { "Content-Length": "100" });
      response.write('{"size"');
      setTimeout(() => response.destroy(), 20);
    },
    async (url) => {
      assert.equal((await errorOf(new Client({ url, namespace: "ns", retryFor: 0 }).size("q"), DormouseError)).type, "network");
    },
  );
  await withServer(
    (_, response) => void response.writeHead(200, { "Content-Length": "100" }).write("{"),
    async (url) => {
      const client = new Client({ url, namespace: "ns", retryFor: 0, timeout: 0.2 });
      assert.equal((await errorOf(client.size("q"), DormouseError)).type, "timeout");
    },
  );
  const refused = new Client({ url: "http://127.0.0.1:1", namespace: "ns", retryFor: 0 });
  assert.equal((await errorOf(refused.size("q"), DormouseError)).type, "network");
});

test("a worker that stops closes half of the connection of its poll, and gives back what comes all the same", async () => {
  const requests: string[] = [];
  const job = { msg: "new job", job_id: "01A", queue: "q", namespace: "ns", data: "eA==", remain_tries: 2, ttl: 9, elapsed_ms: 1, attributes: null, receipt: "2-1" };
  const server = createTcpServer({ allowHalfOpen: true }, (socket) => {
    socket.on("data", (data) => {
      const line = data.toString().split(" HTTP/")[0] as string;
      requests.push(line);
      if (line.startsWith("POST")) send(socket, { msg: "released", remain_tries: 3, due_at: null });
    });
    // The server's last word, when the other half was closed.
    socket.on("end", () => {
      send(socket, job);
      socket.end();
    });
    socket.on("error", () => undefined);
  });
  // By this clock no answer is late.
  const client = new Client({ url: await listening(server), namespace: "ns", clock: new FakeClock() } as ClientOptions);
  const worker = new Worker(client, { signals: false }).handle("q", () => assert.fail("it stops"));
  const ended = worker.run();
  while (requests.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  worker.stop();
  await ended;
  assert.deepEqual(requests.slice(1), ["POST /api/ns/q/job/01A/release?spend=0&receipt=2-1"]);
  client.close();
  server.close();
});

test("a worker that stops while an answer comes lets it come whole", async () => {
  const requests: string[] = [];
  let rest = (): void => undefined;
  const text = JSON.stringify({ job_id: "01A", queue: "q", data: "eA==", remain_tries: 2, ttl: 9, elapsed_ms: 1, receipt: "2-1" });
  const server = createTcpServer({ allowHalfOpen: true }, (socket) => {
    socket.on("data", (data) => {
      requests.push(data.toString().split(" HTTP/")[0] as string);
      if (requests.length > 1) return send(socket, { msg: "released", remain_tries: 3, due_at: null });
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text.slice(0, 20)}`);
      rest = () => void socket.write(text.slice(20));
      return undefined;
    });
    socket.on("end", () => socket.destroy()); // as servers and proxies do that see their caller leave
    socket.on("error", () => undefined);
  });
  const clock = new FakeClock();
  const client = new Client({ url: await listening(server), namespace: "ns", clock } as ClientOptions);
  const worker = new Worker(client, { signals: false }).handle("q", () => assert.fail("it stops"));
  let head = (): void => undefined;
  const begun = new Promise<void>((resolve) => (head = resolve));
  subscribe("http.client.response.finish", head); // a client has the head of its answer
  const ended = worker.run();
  await begun;
  unsubscribe("http.client.response.finish", head);
  await settled();
  worker.stop();
  await clock.advance(800); // longer than it waits for an answer that has not begun
  rest();
  await ended;
  assert.deepEqual(requests.slice(1), ["POST /api/ns/q/job/01A/release?spend=0&receipt=2-1"]);
  client.close();
  server.close();
});

test("the global fetch sends requests too", async () => {
  await withServer((_, response) => response.end('{"size":4}'), async (url) => {
    assert.equal(await new Client({ url, namespace: "ns", fetch }).size("q"), 4);
    // Its connections are kept for some seconds, and would hold up the end of the server.
  });
});

test("over TLS: a certificate must be trusted, and a worker ends well", async (t) => {
  const directory = mkdtempSync(join(tmpdir(), "dormouse-client-"));
  try {
    const [key, cert] = [join(directory, "key"), join(directory, "cert")];
    const made = spawnSync("openssl", [
      "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
      "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
    ]);
    if (made.error) return t.skip("this machine has no openssl");
    assert.equal(made.status, 0, String(made.stderr));
    const server = createTlsServer({ key: readFileSync(key), cert: readFileSync(cert) }, (request, response) => {
      if (request.url?.includes("/size")) response.end('{"size":5}');
    });
    const url = (await listening(server)).replace("http://127.0.0.1", "https://localhost");
    const program = `
      const { Client, Worker } = require("dormouse-client");
      const client = new Client({ url: "${url}", namespace: "ns", retryFor: 0 });
      client.size("q").then(async (size) => {
        const worker = new Worker(client, { signals: false }).handle("q", () => undefined);
        setTimeout(() => worker.stop(), 200);
        await worker.run();
        console.log(size);
      }).catch(({ type, message }) => console.log(type, message));`;
    const cwd = fileURLToPath(new URL(".", import.meta.url));
    const say = async (env: NodeJS.ProcessEnv): Promise<string> =>
      (await promisify(execFile)(process.execPath, ["--eval", program], { cwd, env: { ...process.env, ...env } })).stdout;
    assert.match(await say({}), /^network .*self.signed/);
    assert.equal(await say({ NODE_EXTRA_CA_CERTS: cert }), "5\n");
    server.closeAllConnections();
    server.close();
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});
