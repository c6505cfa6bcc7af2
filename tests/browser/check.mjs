// A browser reads the dashboard of a server that it fills itself: by mouse, by keyboard, without a script, in light and
// dark, on a wide and on a narrow screen. Every page is checked by axe, and neither the console nor the policy of the
// pages may complain.
//
//     node check.mjs ADMIN API [DIRECTORY OF SCREENSHOTS]
//
// ADMIN and API are the addresses of a fresh server's ports, such as http://127.0.0.1:7778.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, statSync } from "node:fs";
import { createRequire } from "node:module";

const modules = process.env.BROWSER_MODULES ?? new URL("../../target/browser/", import.meta.url).pathname;
const require = createRequire(modules + "/x.js");
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core/axe.min.js");
const executablePath = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
assert(executablePath, "chromium is needed: Debian's package chromium");

const [admin, api, shots] = process.argv.slice(2);
assert(admin && api, "node check.mjs ADMIN API [DIRECTORY OF SCREENSHOTS]");
if (shots) mkdirSync(shots, { recursive: true });

const ask = async (method, url, body, headers = {}) => {
  const answer = await fetch(url, { method, body, headers });
  assert(answer.status < 300, `${method} ${url}: ${answer.status} ${await answer.clone().text()}`);
  return answer.text().then((text) => { try { return JSON.parse(text); } catch { return text; } });
};
const sampled = () => ask("GET", admin + "/metrics");

// What the pages show.
const token = (await ask("POST", admin + "/token/shop?description=the%20mailer")).token;
const own = { "X-Token": token };
const HOSTILE = `<script>document.title = "taken over"</script> \u202etxt.exe`;
const put = (queue, body, more = "") => ask("PUT", `${api}/api/shop/${queue}?tries=3${more}`, body, own).then((job) => job.job_id);
for (let n = 0; n < 40; n++) await put("mail", JSON.stringify({ to: `user${n}@shop.example`, order: 10_000 + n }));
const script = await put("mail", HOSTILE);
const bytes = await put("mail", Buffer.from([0xff, 0, 0x1b, 0x5b, 0x33, 0x31, 0x6d, 0x41]));
const large = await put("mail", JSON.stringify({ lines: Array.from({ length: 24_000 }, (_, n) => `line ${n} of many, each with some text`) }).slice(0, 1 << 20));
for (let n = 0; n < 30; n++) await put("reminders", `remind ${n}`, `&delay=${600 + n * 60}`);
await put("orders", "held");
await ask("POST", `${api}/api/shop/orders/pause?for=3600`, null, own);
const why = ["the mail server is away", "the mail server is away", "no such address", "quota of the account exceeded"];
for (let n = 0; n < 24; n++) {
  await ask("PUT", `${api}/api/shop/invoices?tries=1`, JSON.stringify({ invoice: 4000 + n }), own);
  const job = await ask("GET", `${api}/api/shop/invoices?ttr=60&receipt=1`, null, own);
  await ask("POST", `${api}/api/shop/invoices/job/${job.job_id}/bury?receipt=${job.receipt}`, why[n % why.length], own);
}
await ask("PUT", `${admin}/push/shop/hooks`, JSON.stringify({ url: "https://hooks.example/jobs" }));
await ask("PUT", `${api}/api/shop/_schedules/nightly`, JSON.stringify({ queue: "reports", cron: "30 2 * * MON-FRI", zone: "Europe/Berlin", text: "sales" }), own);
await sampled();

const PAGES = {
  overview: "",
  queues: "queues",
  namespace: "namespaces/default/shop",
  queue: "queues/default/shop/mail",
  dead: "queues/default/shop/invoices?state=dead",
  paused: "queues/default/shop/orders",
  asks: "queues/default/shop/orders?ask=destroy",
  script: `jobs/default/shop/mail/${script}`,
  bytes: `jobs/default/shop/mail/${bytes}`,
  large: `jobs/default/shop/mail/${large}`,
  publish: "publish/default/shop?queue=mail",
  push: "push/default/shop/hooks",
  schedules: "schedules?namespace=shop",
  tokens: "tokens/default/shop",
  search: "search?q=shop",
  reasons: "dead",
  bulk: "bulk",
  server: "server",
  nothing: "jobs/default/shop/mail/01M80D5J4VCPC2AJTPM8000000",
};
// The pictures of docs/dashboard.md.
const PICTURES = ["overview-light-1280", "overview-dark-360", "queue-dark-1280", "dead-light-1280", "script-light-1280"];

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server", "--host-resolver-rules=MAP ops.example 127.0.0.1"] });
const told = [];
const open = async (options = {}) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on("console", (message) => {
    // The page that is not there says so in the console too, and over plain HTTP browsers go without one of the headers.
    if (!/status of 40\d|Cross-Origin-Opener-Policy header has been ignored/.test(message.text())) told.push(`${page.url()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => told.push(`${page.url()}: ${error}`));
  return page;
};
const at = (path) => `${admin}/ui/${path}`;
// By an element of its own: a form with a field "contains" is no node to some ways of looking for texts.
const says = async (page, text) => {
  await page.waitForSelector("main > p.done");
  assert((await page.locator("main > p.done").innerText()).includes(text), text);
};
const heading = (page) => page.locator("h1").innerText();

let checked = 0;
// WITHOUT_AXE=1 only uses the pages, which takes a minute less.
for (const colorScheme of process.env.WITHOUT_AXE ? [] : ["light", "dark"]) {
  for (const width of [1280, 360]) {
    // axe is put into the page by the test, which the policy of the page forbids to everybody else.
    const page = await open({ colorScheme, viewport: { width, height: 900 }, bypassCSP: true, reducedMotion: "reduce" });
    for (const [name, path] of Object.entries(PAGES)) {
      const answer = await page.goto(at(path));
      if (answer.status() === 404 && name !== "nothing") continue;
      const title = await page.title();
      assert(title.endsWith("– Dormouse"), `${name}: ${title}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert(wide <= 0, `${name} at ${width}: the page is ${wide} pixels too wide`);
      await page.addScriptTag({ path: axe });
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, {
        runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
      }));
      const found = violations.map((v) => `${v.id}: ${v.help}\n    ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200)).join("\n    ")}`);
      assert.equal(found.length, 0, `${name} ${colorScheme} ${width}:\n  ${found.join("\n  ")}`);
      checked += 1;
      const picture = `${name}-${colorScheme}-${width}`;
      if (shots && (PICTURES.includes(picture) || process.env.ALL_PICTURES)) {
        const path = `${shots}/${picture}.png`;
        await page.screenshot({ path, clip: { x: 0, y: 0, width, height: width === 360 ? 700 : 640 } });
        assert(process.env.ALL_PICTURES || statSync(path).size < 150_000, `${path} is too large: ${statSync(path).size}`);
      }
    }
    await page.context().close();
  }
}
console.log(`axe: ${checked} pages, no violation`);
assert(process.env.WITHOUT_AXE || checked >= 60, "most pages are there");

// A job's script is text, to the very browser.
{
  const page = await open();
  await page.goto(at(PAGES.script));
  assert((await page.title()).startsWith("Job "), "nothing took the page over");
  assert((await page.locator("#body").innerText()).includes("<script>"), "it is shown");
  assert((await page.locator("#body").innerText()).includes("‹U+202E›"), "what turns text is shown");
  await page.context().close();
}

// Live: a page that is open shows what has come, and keeps what somebody does.
{
  const page = await open();
  await page.goto(at("queues/default/shop/live"));
  await put("live", "one");
  await sampled();
  await page.locator("table.jobs tbody tr").waitFor({ timeout: 60_000 });
  await page.locator("input[name=job]").first().check();
  await page.locator("details.curl summary").first().click();
  await page.locator("#search").fill("half a wo");
  await put("live", "two");
  await sampled();
  await page.locator("table.jobs tbody tr").nth(1).waitFor({ timeout: 60_000 });
  assert(await page.locator("input[name=job]").first().isChecked(), "the selection stays");
  assert(await page.locator("details.curl").first().evaluate((node) => node.open), "what is open stays open");
  assert.equal(await page.locator("#search").inputValue(), "half a wo", "what is typed stays");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search", "the focus stays");
  // Off is off.
  await page.locator("[data-live]").uncheck();
  let asked = 0;
  page.on("request", () => { asked += 1; });
  await page.waitForTimeout(6_500);
  assert.equal(asked, 0, "Live off asks nothing");
  await page.context().close();
}

// By keyboard alone: from the overview to the dead jobs of the first row, one of them back in its queue.
{
  const page = await open();
  await page.goto(at(""));
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.keyboard.press("g");
  await page.keyboard.press("q");
  await page.waitForURL("**/ui/queues");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search");
  await page.keyboard.type("shop/invoices");
  await page.keyboard.press("Enter");
  await page.waitForURL("**/queues/default/shop/invoices");
  await page.getByRole("link", { name: /^Dead / }).last().focus();
  await page.keyboard.press("Enter");
  await page.waitForURL("**state=dead**");
  await page.locator("input[name=job]").first().focus();
  await page.keyboard.press("Space");
  await page.getByRole("button", { name: "Respawn", exact: true }).focus();
  await page.keyboard.press("Enter");
  await says(page, "1 job was respawned.");
  await page.context().close();
}

// The three clicks, with and without a script.
for (const javaScriptEnabled of [true, false]) {
  const page = await open({ javaScriptEnabled });
  await page.goto(at(""));
  const began = Date.now();
  const row = page.locator("tbody tr").filter({ hasText: "shop/invoices" });
  await row.locator("td a").nth(3).click();
  const all = page.getByRole("link", { name: "Respawn all", exact: true });
  if (await all.count()) {
    await all.click();
    await page.getByRole("button", { name: "Respawn all" }).click();
    await says(page, "It is begun");
  } else {
    await page.locator("input[name=job]").first().check();
    await page.getByRole("button", { name: "Respawn", exact: true }).click();
    await says(page, "respawned.");
  }
  console.log(`three clicks ${javaScriptEnabled ? "with" : "without"} a script: ${Date.now() - began} ms`);
  await page.context().close();
}

// Over plain HTTP a browser does not say from which site a form comes: its Origin counts.
{
  const page = await open();
  await page.goto(at(PAGES.paused).replace("127.0.0.1", "ops.example"));
  await page.getByRole("button", { name: "Resume queue" }).click();
  await says(page, "The queue is resumed.");
  await page.context().close();
}

// Copy, also where there is no clipboard API.
{
  const page = await open();
  await page.addInitScript(() => Object.defineProperty(navigator, "clipboard", { value: undefined }));
  await page.goto(at(PAGES.bytes));
  await page.getByRole("button", { name: "Copy" }).click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  assert(await heading(page));
  await page.context().close();
}

await browser.close();
assert.deepEqual(told, [], "the console is silent");
console.log("the console is silent");
