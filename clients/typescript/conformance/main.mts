/**
 * The conformance program of the TypeScript library: it does what the lines of its standard input say, and tells what has
 * come of it on its standard output. The suite in clients/conformance drives it.
 */

import { createInterface } from "node:readline";
import { type Client, SignatureError, DormouseError, UncleanError, verify, VERSION } from "dormouse-client";
import * as requests from "./requests.mjs";
import { event, type Fields, number, type Op, orNull, program, text, write } from "./program.mjs";
import { double, makeWorker, startWorker, stopWorker } from "./worker.mjs";

event("ready", { language: "typescript", version: VERSION, lacks: ["block"] });

// Each worker has the signals too.
for (const name of ["SIGTERM", "SIGINT"] as const) {
  process.once(name, () => {
    void Promise.all([...program.workers.values()].map((worker) => worker.ended)).then(() => process.exit(program.unclean ? 1 : 0));
  });
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("line", (line) => {
  const op = JSON.parse(line) as Op;
  void answer(op).then((told) => write({ id: op.id, ...told }));
});
lines.on("close", () => process.exit(0));

async function answer(op: Op): Promise<Fields> {
  try {
    return { result: await run(op) };
  } catch (error) {
    return { error: describe(error) };
  }
}

/** Until its first `await` an op runs before the next line: later lines stand on clients, workers and gates. */
async function run(op: Op): Promise<Fields> {
  switch (op.op) {
    case "client": return requests.makeClient(op);
    case "worker": return makeWorker(op);
    case "start": return startWorker(op, describe);
    case "stop": return stopWorker(op);
    case "open":
      program.gate(text(op, "gate")).open();
      return {};
    case "double": return double(op);
    case "verify":
      verify(op.secrets as string[], op.headers as Record<string, string>, Buffer.from(text(op, "data"), "base64"), number(op, "now"));
      return {};
    case "touch": case "release": case "bury": case "ack": return requests.hold(op);
  }
  const client: Client | undefined = program.clients.get(String(op.client));
  if (!client) throw new Error(`no client is called ${op.client}, or the op ${op.op} is not known`);
  return requests.request(client, op);
}

/** An error as the protocol has it. */
function describe(error: unknown): Fields {
  const fields: Fields = {
    type: "other", status: null, message: error instanceof Error ? error.message : String(error), retryable: false,
    retry_after: null, request_id: null, job_id: null, index: null, published: null,
  };
  if (error instanceof SignatureError) return { ...fields, type: "signature", message: `${error.what}: ${error.message}` };
  if (error instanceof UncleanError) return { ...fields, type: "unclean" };
  if (!(error instanceof DormouseError)) return fields;
  return {
    ...fields, type: error.type, status: orNull(error.status), retryable: error.retryable,
    retry_after: orNull(error.retryAfter), request_id: orNull(error.requestId), job_id: orNull(error.jobId),
    index: orNull(error.index), published: orNull(error.published?.length),
  };
}
