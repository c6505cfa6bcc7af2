/** The transport of requests: persistent connections, over `node:http`. It retries nothing and follows no redirect. */

import * as http from "node:http";
import * as https from "node:https";

/** A request, as accepted by `fetch`. */
export interface Outgoing {
  method: string;
  headers: Record<string, string>;
  body?: Uint8Array;
  redirect: "manual";
  /** Ends the request at once. */
  signal: AbortSignal;
  /**
   * Asks for the end of a poll without losing a job in transit: a response may still arrive. Transports may ignore it;
   * then `signal` ends the poll a moment later.
   */
  leave?: AbortSignal;
}

/** A response, as returned by `fetch`. */
export interface Incoming {
  readonly status: number;
  readonly headers: { get(name: string): string | null };
  arrayBuffer(): Promise<ArrayBuffer | Uint8Array>;
}

/** Sends a request. The global `fetch` is one implementation, a test double another. */
export type Fetch = (url: string, init: Outgoing) => Promise<Incoming>;

/** Larger than any reply of a server: 8 MiB of jobs as base64 with their attributes. */
const MAX_ANSWER = 64 * 1024 * 1024;

/** Node's own agents, with persistent connections that do not keep the program alive. @internal */
export class Connections {
  readonly #http = new http.Agent({ keepAlive: true, noDelay: true, scheduling: "lifo" });
  readonly #https = new https.Agent({ keepAlive: true, noDelay: true, scheduling: "lifo" });

  /** Closes idle connections. */
  close(): void {
    this.#http.destroy();
    this.#https.destroy();
  }

  readonly fetch: Fetch = (url, init) =>
    new Promise((resolve, reject) => {
      const parsed = new URL(url);
      const secure = parsed.protocol === "https:";
      const body = init.body ?? new Uint8Array();
      const headers: http.OutgoingHttpHeaders = { ...init.headers };
      if (init.method !== "GET" && (init.method !== "DELETE" || body.length > 0)) headers["content-length"] = body.length;
      const request = (secure ? https : http).request({
        protocol: parsed.protocol,
        hostname: parsed.hostname.replace(/^\[|\]$/g, ""), // of an IPv6 address
        port: parsed.port,
        path: url.slice(parsed.origin.length), // a key may be `..`, which is no step of a path
        agent: secure ? this.#https : this.#http,
        method: init.method,
        headers,
        signal: init.signal,
      });
      request.on("error", reject);
      const hangUp = (): void => leave(request);
      const stay = (): void => init.leave?.removeEventListener("abort", hangUp);
      init.leave?.addEventListener("abort", hangUp);
      request.on("close", stay);
      request.on("response", (response) => {
        stay(); // an answer that has begun comes whole
        resolve({
          status: response.statusCode ?? 0,
          headers: { get: (name) => one(response.headers[name]) },
          arrayBuffer: () => read(response),
        });
      });
      request.end(body);
    });
}

function one(value: string | string[] | undefined): string | null {
  return Array.isArray(value) ? (value[0] ?? null) : (value ?? null);
}

/**
 * Closes the write side of the connection: the server takes that for a disconnect, and replies that there is no job, or
 * has sent one already. A connection that is not made yet has nothing in flight.
 */
function leave(request: http.ClientRequest): void {
  if (request.socket && !request.socket.connecting) request.socket.end();
  else request.destroy(new Error("the poll has ended before it was sent"));
}

async function read(response: http.IncomingMessage): Promise<Uint8Array> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    chunks.push(chunk);
    size += chunk.length;
    if (size > MAX_ANSWER) throw new Error("the answer is too large");
  }
  if (!response.complete) throw new Error("the answer broke off");
  return Buffer.concat(chunks);
}
