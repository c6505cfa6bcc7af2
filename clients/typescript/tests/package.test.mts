/** The package is packed, and used from an empty project by `import` and by `require`. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, symlinkSync, mkdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

function run(cwd: string, command: string, ...args: string[]): string {
  try {
    return execFileSync(command, args, { cwd, encoding: "utf8", stdio: "pipe" });
  } catch (error) {
    const { stdout, stderr } = error as { stdout: string; stderr: string };
    throw new Error(`${command} ${args.join(" ")}\n${stdout}\n${stderr}`);
  }
}

const USE = `
const double: Double = new Double();
const client: Client = double.client();
const done: string[] = [];
const worker = new Worker(client, { signals: false }).handle("q", (job) => {
  done.push(job.text());
  if (job.text() === "never") throw new Permanent("no");
});
async function main(): Promise<void> {
  await client.publish("q", "x", { delay: 60 });
  await client.publish("q", "never");
  double.advance(60);
  await worker.runUntilIdle();
  const { size }: { size: number } = await client.deadLetter("q");
  console.log(VERSION, done.sort().join(), size);
}
void main();
`;

test("the package has what it should, and works from an empty project", () => {
  const directory = mkdtempSync(join(tmpdir(), "dormouse-client-"));
  try {
    const packed = JSON.parse(run(ROOT, "npm", "pack", "--ignore-scripts", "--json", "--pack-destination", directory)) as [{ filename: string; files: { path: string }[] }];
    const [{ filename, files }] = packed;
    const strange = files.map(({ path }) => path).filter((path) => !/^(dist\/[a-z]+(\.d)?\.m?[jt]s|package\.json|README\.md)$/.test(path));
    assert.deepEqual(strange, []);
    writeFileSync(join(directory, "package.json"), '{"name":"empty","private":true}');
    run(directory, "npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", `./${filename}`);
    assert.deepEqual(readdirSync(join(directory, "node_modules")).filter((name) => !name.startsWith(".")), ["dormouse-client"]);
    const imports = 'import { Client, Permanent, VERSION, Worker } from "dormouse-client";\nimport { Double } from "dormouse-client/testing";\n';
    const requires = 'import dormouse = require("dormouse-client");\nimport testing = require("dormouse-client/testing");\nconst { Permanent, VERSION, Worker } = dormouse;\nconst { Double } = testing;\ntype Client = dormouse.Client;\ntype Double = testing.Double;\n';
    writeFileSync(join(directory, "use.mts"), imports + USE);
    writeFileSync(join(directory, "use.cts"), requires + USE);
    // Its types need those of Node, and nothing else.
    mkdirSync(join(directory, "node_modules/@types"));
    symlinkSync(join(ROOT, "node_modules/@types/node"), join(directory, "node_modules/@types/node"));
    symlinkSync(join(ROOT, "node_modules/undici-types"), join(directory, "node_modules/undici-types"));
    run(directory, join(ROOT, "node_modules/.bin/tsc"), "--strict", "--module", "node16", "--target", "es2022", "--types", "node", "use.mts", "use.cts");
    // As many projects are set up still: `import` that becomes `require`, and types that are found without `exports`.
    writeFileSync(join(directory, "classic.ts"), imports + USE);
    run(directory, join(ROOT, "node_modules/.bin/tsc"), "--strict", "--module", "commonjs", "--moduleResolution", "node10", "--target", "es2022", "--types", "node", "classic.ts");
    for (const program of ["use.mjs", "use.cjs", "classic.js"]) assert.equal(run(directory, "node", program), "0.1.0 never,x 1\n", program);
    // Both have one of each class.
    const both = 'import { Client } from "dormouse-client"; import { createRequire } from "node:module"; console.log(createRequire(import.meta.url)("dormouse-client").Client === Client);';
    assert.equal(run(directory, "node", "--input-type=module", "--eval", both), "true\n");
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
});
