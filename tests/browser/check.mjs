// Browser test of the dashboard of a server that it fills itself: by mouse, by keyboard, without a script, in light
// and dark, on wide and narrow screens. axe checks every page, and the console must show no errors and no violations
// of the content security policy.
//
//     node check.mjs ADMIN API [DIRECTORY OF SCREENSHOTS]
//
// ADMIN and API are the URLs of a fresh server's ports, such as http://127.0.0.1:7778. AWAY_ADMIN and AWAY_API are
// those of another server, whose Redis has the process id AWAY_REDIS and is killed. Options:
//
//     ALL_PICTURES=1    screenshots of each page, light and dark, wide and narrow; by default only the documents'
//     LOAD_MINUTES=60   minutes of load before the charts are checked; 1.25 by default
//     DEAD_JOBS=1000    number of jobs respawned by three clicks; ten thousand by default
//     WITHOUT_AXE=1     without axe, which saves some minutes
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
// Waits until the server has read its stores after now.
const sampled = async (server = admin) => {
  const now = new Date().toISOString();
  for (let n = 0; n < 200; n++) {
    if ((await ask("GET", server + "/queues?limit=1")).sampled_at > now) return;
    await ask("GET", server + "/metrics");
    await new Promise((done) => setTimeout(done, 200));
  }
  assert.fail("the stores are read each ten seconds");
};

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server", "--host-resolver-rules=MAP ops.example 127.0.0.1"] });
const told = [];
const open = async (options = {}) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  page.on("console", (message) => {
    // A missing page is reported in the console too, and over plain HTTP browsers ignore one of the headers.
    if (!/status of 40\d|Cross-Origin-Opener-Policy header has been ignored/.test(message.text())) told.push(`${page.url()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => told.push(`${page.url()}: ${error}`));
  return page;
};
const at = (path) => `${admin}/ui/${path}`;
// Waits for a specific element: a form with a field "contains" confuses some text searches.
const says = async (page, text) => {
  await page.waitForSelector("main > p.done");
  assert((await page.locator("main > p.done").innerText()).includes(text), text);
};
const heading = (page) => page.locator("h1").innerText();

let checked = 0;
// Screenshots for docs/dashboard.md.
const PICTURES = ["overview-light-1280", "dead-light-1280", "server-dark-1280"];
const LOOKS = ["light", "dark"].flatMap((colorScheme) => [1440, 1280, 390].map((width) => ({ colorScheme, width })));

// Checks the current page with axe, and its width, and takes a screenshot.
async function check(page, name, { colorScheme, width }) {
  const title = await page.title();
  assert(title.endsWith("– Dormouse"), `${name}: ${title}`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(wide <= 0, `${name} at ${width}: the page is ${wide} pixels too wide`);
  // On a wide screen no table is cut off.
  const cut = width < 1280 ? [] : await page.evaluate(() => [...document.querySelectorAll(".scroll")]
    .filter((node) => node.scrollWidth > node.clientWidth + 1)
    .map((node) => `${node.getAttribute("aria-label")}: ${node.scrollWidth} of ${node.clientWidth}`));
  assert.deepEqual(cut, [], `${name} at ${width}: tables are wider than their place`);
  if (!process.env.WITHOUT_AXE && width !== 1440) {
    await page.addScriptTag({ path: axe });
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, {
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    }));
    const found = violations.map((v) => `${v.id}: ${v.help}\n    ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200)).join("\n    ")}`);
    assert.equal(found.length, 0, `${name} ${colorScheme} ${width}:\n  ${found.join("\n  ")}`);
    checked += 1;
  }
  const picture = `${name}-${colorScheme}-${width}`;
  if (!shots || !PICTURES.includes(picture) && !process.env.ALL_PICTURES) return;
  const path = `${shots}/${picture}.png`;
  // For some pages, a part further down.
  const from = { large: "p.switch", bytes: "p.switch" }[name];
  const y = from ? await page.evaluate((from) => document.querySelector(from).offsetTop - 60, from) : 0;
  const whole = await page.evaluate(() => document.documentElement.scrollHeight) - y;
  const height = process.env.ALL_PICTURES ? Math.min(whole, 2400) : width === 390 ? 760 : 720;
  await page.screenshot({ path, fullPage: true, clip: { x: 0, y, width, height } });
  assert(process.env.ALL_PICTURES || statSync(path).size < 150_000, `${path} is too large: ${statSync(path).size}`);
}

// Visits and checks pages.
async function looked(look, pages, server = admin) {
  // The test injects axe into the page, which its content security policy would forbid.
  const page = await open({ colorScheme: look.colorScheme, viewport: { width: look.width, height: 900 }, bypassCSP: true, reducedMotion: "reduce" });
  for (const [name, path] of Object.entries(pages)) {
    const answer = await page.goto(`${server}/ui/${path}`);
    assert.equal(answer.status(), name === "nothing" ? 404 : 200, name);
    await check(page, name, look);
  }
  await page.context().close();
}

// A server without queues.
await sampled();
for (const look of LOOKS) await looked(look, { empty: "", "empty-dead": "dead" });

// Data for all pages.
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
await put("a-name-that-is-longer-than-its-column", "long");
await ask("POST", `${api}/api/shop/orders/pause?for=3600`, null, own);
const bury = async (n) => {
  await ask("PUT", `${api}/api/shop/invoices?tries=1`, JSON.stringify({ invoice: 4000 + n }), own);
  const job = await ask("GET", `${api}/api/shop/invoices?ttr=60&receipt=1`, null, own);
  await ask("POST", `${api}/api/shop/invoices/job/${job.job_id}/bury?receipt=${job.receipt}`, why[n % why.length], own);
};
const why = ["the mail server is away", "the mail server is away", "no such address", "quota of the account exceeded"];
for (let n = 0; n < 24; n++) {
  await bury(n);
}
// Nothing listens there: after ten attempts push considers the endpoint down.
await ask("PUT", `${admin}/push/shop/hooks`, JSON.stringify({ url: "http://127.0.0.1:9/jobs", retry: [0.1] }));
for (let n = 0; n < 12; n++) await put("hooks", `event ${n}`, "&tries=100");
await ask("PUT", `${api}/api/shop/_schedules/nightly`, JSON.stringify({ queue: "reports", cron: "30 2 * * MON-FRI", zone: "Europe/Berlin", text: "sales" }), own);
// A queue whose workers are too slow, and a busy one with varying load.
for (let n = 0; n < 200; n++) await put("exports", `export ${n}`);
const loaded = { began: Date.now(), runs: true };
const take = async (queue, count) => {
  const answer = await fetch(`${api}/api/shop/${queue}?ttr=60&count=${count}`, { headers: own });
  const jobs = answer.status === 200 ? await answer.json().then((all) => [all].flat()) : [];
  for (const { job_id } of jobs) await ask("DELETE", `${api}/api/shop/${queue}/job/${job_id}`, null, own);
};
loaded.ends = (async () => {
  for (let n = 0; loaded.runs; n++) {
    const minute = (Date.now() - loaded.began) / 60_000;
    for (let m = 0; m < 3 + 2 * Math.sin(minute / 2); m++) await put("thumbnails", `picture ${n}-${m}`);
    // Its workers pause now and then.
    if (Math.floor(minute) % 7 !== 5) await take("thumbnails", 6);
    if (n % 20 === 0) await take("exports", 1);
    if (n % 200 === 199) await bury(n);
    await new Promise((done) => setTimeout(done, 400));
  }
})();
await sampled();

const PAGES = {
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
  "schedule-form": "schedules/edit?pool=default&namespace=shop&name=nightly",
  delayed: "queues/default/shop/reminders",
  delays: "queues/default/shop/reminders?due=hour",
  search: "search?q=shop",
  "search-text": "search?q=user17%40shop",
  reasons: "dead",
  bulk: "bulk",
  server: "server",
  nothing: "jobs/default/shop/mail/01M80D5J4VCPC2AJTPM8000000",
};

for (const look of LOOKS) await looked(look, PAGES);

// A token, which is shown once.
for (const look of LOOKS) {
  const page = await open({ colorScheme: look.colorScheme, viewport: { width: look.width, height: 900 }, bypassCSP: true, reducedMotion: "reduce" });
  await page.goto(at("tokens/default/shop"));
  await page.getByLabel("Description").fill("the report writer");
  await page.getByRole("button", { name: "Create token" }).click();
  await page.locator("[data-once]").waitFor();
  await check(page, "token", look);
  await page.context().close();
}

// The Redis of another server is killed: its last data is shown.
if (process.env.AWAY_ADMIN) {
  const [admin, api] = [process.env.AWAY_ADMIN, process.env.AWAY_API];
  const { token } = await ask("POST", admin + "/token/shop?description=away");
  for (const queue of ["mail", "reports", "thumbnails"]) {
    for (let n = 0; n < 5; n++) await ask("PUT", `${api}/api/shop/${queue}`, `job ${n}`, { "X-Token": token });
  }
  await sampled(admin);
  process.kill(Number(process.env.AWAY_REDIS), "SIGKILL");
  for (let n = 0; n < 200 && !(await ask("GET", admin + "/queues")).pools[0].trouble; n++) await new Promise((done) => setTimeout(done, 200));
  for (const look of LOOKS) await looked(look, { away: "", "away-queue": "queues/default/shop/mail" }, admin);
  const page = await open();
  await page.goto(`${admin}/ui/queues/default/shop/mail`);
  const said = await page.locator("main").innerText();
  assert(said.includes("): the store does not answer") && !said.includes("internal error"), `what the lists say: ${said}`);
  await page.context().close();
}

// Results that take time: late queues, and charts.
{
  const rest = loaded.began + Number(process.env.LOAD_MINUTES ?? 1.25) * 60_000 - Date.now();
  await new Promise((done) => setTimeout(done, Math.max(0, rest)));
  // This queue was paused a moment ago: the other one is late by now.
  await put("refunds", "held");
  await ask("POST", `${api}/api/shop/refunds/pause?for=3600`, null, own);
  await sampled();
  const needs = (await ask("GET", admin + "/queues")).queues.map((queue) => `${queue.queue} ${queue.need}`);
  for (const need of ["hooks push", "invoices dying", "exports late", "refunds paused"]) assert(needs.includes(need), `${need}: ${needs}`);
  const page = await open();
  await page.goto(at("namespaces/default/shop"));
  const pushed = await page.locator("main ul").last().innerText();
  assert(/^hooks push is failing: no response for /.test(pushed), `the state of push: ${pushed}`);
  await page.context().close();
  for (const look of LOOKS) await looked(look, { overview: "", charts: "queues/default/shop/thumbnails" });
  console.log(`charts after ${((Date.now() - loaded.began) / 60_000).toFixed(1)} minutes of load`);
  loaded.runs = false;
  await loaded.ends;
}
console.log(`axe: ${checked} pages, no violation`);
assert(process.env.WITHOUT_AXE || checked >= 90, `all pages: ${checked}`);

// A script in a job is displayed as text, in the browser too.
{
  const page = await open();
  await page.goto(at(PAGES.script));
  assert((await page.title()).startsWith("Job "), "nothing took the page over");
  assert((await page.locator("#body").innerText()).includes("<script>"), "it is shown");
  assert((await page.locator("#body").innerText()).includes("‹U+202E›"), "what turns text is shown");
  await page.context().close();
}

// Live updates: an open page shows new jobs, and keeps the user's input.
{
  const page = await open();
  await page.goto(at("queues/default/shop/live"));
  await put("live", "one");
  await sampled();
  await page.locator("table.jobs tbody tr").waitFor({ timeout: 60_000 });
  await page.locator("input[name=job]").first().check();
  await page.locator("details.curl summary").first().click();
  await page.locator("#search").fill("half a wo");
  await page.evaluate(() => {
    globalThis.shifted = 0;
    new PerformanceObserver((list) => {
      for (const shift of list.getEntries()) if (!shift.hadRecentInput) globalThis.shifted += shift.value;
    }).observe({ type: "layout-shift" });
  });
  await put("live", "two");
  await sampled();
  await page.locator("table.jobs tbody tr").nth(1).waitFor({ timeout: 60_000 });
  assert(await page.locator("input[name=job]").first().isChecked(), "the selection stays");
  assert(await page.locator("details.curl").first().evaluate((node) => node.open), "what is open stays open");
  assert.equal(await page.locator("#search").inputValue(), "half a wo", "what is typed stays");
  assert.equal(await page.evaluate(() => document.activeElement.id), "search", "the focus stays");
  const shifted = await page.evaluate(() => globalThis.shifted);
  console.log(`a refresh with a row more moves the page by ${shifted.toFixed(4)}`);
  assert(shifted <= 0.02, `a refresh moves the page by ${shifted}`);
  // Switched off, it stops updating.
  await page.locator("[data-live]").uncheck();
  let asked = 0;
  page.on("request", () => { asked += 1; });
  await page.waitForTimeout(6_500);
  assert.equal(asked, 0, "Live off asks nothing");
  await page.context().close();
}

// Correct right after a change: the button next to Pause, its command, and the values of a chart under the pointer.
for (const [how, javaScriptEnabled, live] of [["live", true, true], ["not live", true, false], ["without a script", false, false]]) {
  const page = await open({ javaScriptEnabled });
  await page.goto(at("queues/default/shop/mail"));
  if (javaScriptEnabled && !live) await page.locator("[data-live]").uncheck();
  await page.locator("#for").selectOption("3600");
  if (javaScriptEnabled) {
    const command = await page.locator("details.curl code").first().textContent();
    assert(command.includes("for=3600"), `${how}: the command follows the duration: ${command}`);
    await page.locator("svg.plot").first().hover();
    const tip = await page.locator("#tip").innerText();
    assert(/^\d\d:\d\d UTC\nin /.test(tip), `${how}: the values under the pointer: ${tip}`);
  }
  await page.getByRole("button", { name: "Pause queue" }).click();
  await says(page, "The queue is paused.");
  assert.equal(await page.getByRole("button", { name: "Pause queue" }).count(), 0, how);
  await page.getByRole("button", { name: "Resume queue" }).click();
  await says(page, "The queue is resumed.");
  assert.equal(await page.getByRole("button", { name: "Resume queue" }).count(), 0, how);
  await page.context().close();
}

// Promoting a delayed job, and a schedule, by clicks.
{
  const page = await open();
  // The first of them are due on a slow machine by now, so the page may open on another state.
  await page.goto(at("queues/default/shop/reminders?state=delayed"));
  await page.locator("input[name=job]").first().check();
  await page.getByRole("button", { name: "Make due now" }).click();
  await says(page, "1 job is due now.");
  await page.goto(at("schedules"));
  await page.getByRole("link", { name: "New schedule" }).click();
  await page.getByLabel("Namespace").fill("shop");
  await page.getByLabel("Name", { exact: true }).fill("weekly");
  await page.getByLabel("Queue").fill("reports");
  await page.getByLabel("Cron").fill("0 8 * * MON");
  await page.getByLabel("Body").fill("sales");
  await page.getByRole("button", { name: "Preview" }).click();
  await page.getByText("Next occurrences").waitFor();
  await page.getByRole("button", { name: "Save" }).click();
  await says(page, "The schedule is saved.");
  await page.context().close();
}

// By keyboard only: from the overview to the dead jobs of the first row, and one of them back to its queue.
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

// Three clicks: from the overview to respawning all dead jobs, by mouse, by keyboard, and without a script.
{
  const batches = Math.ceil(Number(process.env.DEAD_JOBS ?? 10_000) / 64);
  const letters = JSON.stringify(Array.from({ length: 64 }, (_, n) => ({ to: `user${n}@shop.example` })));
  for (let n = 0; n < batches; n++) await ask("PUT", `${api}/api/shop/letters/bulk?tries=1`, letters, own);
  const total = batches * 64;
  const size = async (path) => (await ask("GET", `${api}/api/shop/letters${path}/size`)).size;
  const until = async (what, holds) => {
    for (let n = 0; n < 600; n++) {
      if (await holds()) return;
      await new Promise((done) => setTimeout(done, 100));
    }
    assert.fail(what);
  };
  // Workers consume all of them, and never ack.
  const die = async () => {
    const answers = async () => {
      while ((await fetch(`${api}/api/shop/letters?ttr=1&count=100`, { headers: own })).status === 200);
    };
    await until("all die", async () => { await answers(); return await size("/deadletter") === total; });
    await sampled();
  };
  const row = (page) => page.locator("tbody tr").filter({ hasText: "shop/letters" });
  const clicks = async (page) => {
    await row(page).locator("td a[href$='state=dead']").click();
    await page.getByRole("link", { name: "Respawn all", exact: true }).click();
    await page.getByRole("button", { name: "Respawn all" }).click();
    return "3 clicks";
  };
  const keys = async (page) => {
    let pressed = 0;
    // By Tab only, like a user who cannot see the page.
    const to = async (wanted) => {
      for (let n = 0; n < 400; n++) {
        await page.keyboard.press("Tab");
        pressed += 1;
        const there = await page.evaluate(({ tag, text, of }) => {
          const node = document.activeElement;
          const right = node.tagName === tag && (!text || node.textContent.trim() === text);
          return right && (!of || node.closest("tr")?.dataset.key === of && node.href.endsWith("state=dead"));
        }, wanted);
        if (!there) continue;
        await page.keyboard.press("Enter");
        pressed += 1;
        return;
      }
      assert.fail(`nothing to press: ${JSON.stringify(wanted)}`);
    };
    await to({ tag: "A", of: "default/shop/letters" });
    await page.waitForURL("**state=dead**");
    await to({ tag: "A", text: "Respawn all" });
    await page.waitForURL("**ask=respawn-all**");
    await to({ tag: "BUTTON", text: "Respawn all" });
    return `${pressed} keys`;
  };
  for (const [how, javaScriptEnabled, act] of [["by mouse", true, clicks], ["by keyboard", true, keys], ["without a script", false, clicks]]) {
    await die();
    const page = await open({ javaScriptEnabled });
    await page.goto(at(""));
    assert((await row(page).innerText()).includes("died in ten minutes"), "the overview says so");
    const began = Date.now();
    const done = await act(page);
    await says(page, "The action has started");
    const begun = Date.now() - began;
    await until("all are back", async () => await size("") === total);
    console.log(`${total} dead jobs ${how}: ${done}, ${begun} ms until the page says that it is begun, ${Date.now() - began} ms until all are back`);
    await until("the action has ended", async () => (await ask("GET", `${admin}/bulk`)).actions.every((action) => action.status !== "running"));
    await page.context().close();
  }
}

// Over plain HTTP browsers do not send Sec-Fetch-Site: the Origin is checked.
{
  const page = await open();
  await page.goto(at(PAGES.paused).replace("127.0.0.1", "ops.example"));
  await page.getByRole("button", { name: "Resume queue" }).click();
  await says(page, "The queue is resumed.");
  await page.context().close();
}

// Copying, also without a clipboard API.
{
  const page = await open();
  await page.addInitScript(() => Object.defineProperty(navigator, "clipboard", { value: undefined }));
  await page.goto(at(PAGES.bytes));
  await page.getByRole("button", { name: "Copy", exact: true }).click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  // The whole id, into the search box.
  await page.getByRole("button", { name: "Copy the id" }).click();
  await page.getByRole("button", { name: "Copied the id" }).waitFor();
  await page.locator("#search").focus();
  await page.keyboard.press("Control+V");
  assert.equal(await page.locator("#search").inputValue(), bytes, "the id is copied in full");
  assert(await heading(page));
  await page.context().close();
}

await browser.close();
assert.deepEqual(told, [], "the console is silent");
console.log("the console is silent");
