/** Verifies requests of push. docs/push.md of the server describes their signatures. */

import { createHmac, timingSafeEqual } from "node:crypto";

/** Why a signed request was rejected; `secret` is a misconfiguration of the receiver. */
export type SignatureFault = "missing" | "timestamp" | "signature" | "secret";

/** Rejection by {@link verify}. */
export class SignatureError extends Error {
  static {
    this.prototype.name = "SignatureError";
  }
  constructor(readonly what: SignatureFault, message: string) {
    super(message);
  }
}

/** Headers of Node's `http`, of `fetch`, or a plain object: in any case. */
export type VerifyHeaders =
  | { readonly [name: string]: string | readonly string[] | undefined }
  | { get(name: string): string | null };

/** Tolerated difference between the clocks of the server and of this machine, in seconds. */
const TOLERANCE = 300;

/**
 * Throws a {@link SignatureError} unless the server has signed the request with one of the secrets. The body must be
 * byte for byte as received. `now` is the time in milliseconds, for tests.
 */
export function verify(
  secrets: string | readonly string[],
  headers: VerifyHeaders,
  body: Uint8Array | string,
  now: number = Date.now(),
): void {
  const keys = (typeof secrets === "string" ? [secrets] : secrets).map(keyOf);
  if (keys.length === 0) throw new SignatureError("secret", "no secret is given");
  const id = header(headers, "webhook-id");
  const stamp = header(headers, "webhook-timestamp");
  const signatures = header(headers, "webhook-signature");
  if (!/^\d+$/.test(stamp)) throw new SignatureError("timestamp", "webhook-timestamp is no number of seconds");
  if (!(Math.abs(now / 1000 - Number(stamp)) <= TOLERANCE)) {
    throw new SignatureError("timestamp", "webhook-timestamp is more than five minutes away");
  }
  let ours = false;
  for (const key of keys) {
    const right = createHmac("sha256", key).update(`${id}.${stamp}.`).update(body).digest("base64");
    for (const signature of signatures.split(/\s+/)) {
      if (signature.startsWith("v1,") && same(signature.slice(3), right)) ours = true;
    }
  }
  if (!ours) throw new SignatureError("signature", "no signature of the request is right");
}

function keyOf(secret: string): Buffer {
  const text = secret.replace(/^whsec_/, "");
  const key = Buffer.from(text, "base64");
  // As in Standard Webhooks; the server's secrets have 32.
  if (key.length < 24 || key.length > 64 || key.toString("base64") !== text) {
    throw new SignatureError("secret", "a secret should be whsec_ and 24 to 64 bytes in base64");
  }
  return key;
}

function header(headers: VerifyHeaders, name: string): string {
  let found: unknown;
  if (typeof headers.get === "function") {
    found = headers.get(name);
  } else {
    const entry = Object.entries(headers).find(([given]) => given.toLowerCase() === name);
    found = Array.isArray(entry?.[1]) ? entry[1][0] : entry?.[1];
  }
  if (typeof found !== "string" || found === "") {
    throw new SignatureError("missing", `the request has no header ${name}`);
  }
  return found;
}

function same(given: string, right: string): boolean {
  const a = Buffer.from(given);
  const b = Buffer.from(right);
  return a.length === b.length && timingSafeEqual(a, b);
}
