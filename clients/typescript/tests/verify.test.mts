import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";
import { verify, SignatureError } from "dormouse-client";

const KEY = Buffer.from(Array.from({ length: 32 }, (_, i) => i));
const SECRET = `whsec_${KEY.toString("base64")}`;
const OTHER = `whsec_${Buffer.alloc(32).toString("base64")}`;
const NOW = 1_795_315_200_000;
const BODY = Buffer.from([1, 255, 0, 10]);

function signed(secret = SECRET): Record<string, string> {
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  const mac = createHmac("sha256", key).update(`01A.${NOW / 1000}.`).update(BODY).digest("base64");
  return { "webhook-id": "01A", "webhook-timestamp": String(NOW / 1000), "webhook-signature": `v1,${mac}` };
}

function fault(...args: Parameters<typeof verify>): string | undefined {
  try {
    verify(...args);
  } catch (error) {
    assert.ok(error instanceof SignatureError);
    return error.what;
  }
  return undefined;
}

test("what was signed with a secret is taken, by any form of headers", () => {
  const headers = signed();
  assert.equal(fault(SECRET, headers, BODY, NOW), undefined);
  assert.equal(fault([OTHER, SECRET], headers, BODY, NOW), undefined);
  assert.equal(fault(SECRET, new Headers(headers), BODY, NOW), undefined);
  assert.equal(fault(SECRET, Object.fromEntries(Object.entries(headers).map(([k, v]) => [k.toUpperCase(), [v]])), BODY, NOW), undefined);
  const both = { ...headers, "webhook-signature": `v1a,x ${signed(OTHER)["webhook-signature"]} ${headers["webhook-signature"]}` };
  assert.equal(fault(SECRET, both, BODY, NOW), undefined);
  const text = createHmac("sha256", KEY).update(`01A.${NOW / 1000}.to ann é`).digest("base64");
  assert.equal(fault(SECRET, { ...headers, "webhook-signature": `v1,${text}` }, "to ann é", NOW), undefined);
});

test("what is wrong is named", () => {
  const headers = signed();
  const mac = (headers["webhook-signature"] as string).slice(3);
  assert.equal(fault(SECRET, headers, Buffer.from("x"), NOW), "signature");
  assert.equal(fault(OTHER, headers, BODY, NOW), "signature");
  for (const odd of [`v2,${mac}`, mac, "v1,", `v1,${mac.slice(0, -1)}`, `v1,${mac}=`, `v1,${Buffer.from(mac).toString("base64")}`]) {
    assert.equal(fault(SECRET, { ...headers, "webhook-signature": odd }, BODY, NOW), "signature", odd);
  }
  for (const name of Object.keys(headers)) assert.equal(fault(SECRET, { ...headers, [name]: undefined }, BODY, NOW), "missing");
  for (const shift of [300_001, -300_001]) assert.equal(fault(SECRET, headers, BODY, NOW + shift), "timestamp");
  for (const shift of [300_000, -300_000]) assert.equal(fault(SECRET, headers, BODY, NOW + shift), undefined);
  for (const stamp of ["x", "1e9", "1.5", "-1", "9".repeat(30)]) {
    assert.equal(fault(SECRET, { ...headers, "webhook-timestamp": stamp }, BODY, NOW), "timestamp");
  }
  for (const secret of ["", "whsec_", "whsec_!!", `${SECRET}x`, []]) assert.equal(fault(secret, headers, BODY, NOW), "secret");
});
