// Progressive enhancement of the pages: live updates, copy buttons, values of charts, and keyboard shortcuts. Never
// builds markup from data: fetched pages come from the server, and are merged node by node.
"use strict";
(() => {
  const EVERY = 5000;
  const html = document.documentElement;
  const stored = (name, usual) => { try { return localStorage.getItem("dormouse." + name) ?? usual; } catch { return usual; } };
  const store = (name, value) => { try { localStorage.setItem("dormouse." + name, value); } catch { /* private windows */ } };

  // A form's field named "contains" or "id" hides the form's own property, so these read the node itself.
  const holds = (node, other) => Node.prototype.contains.call(node, other);
  const idOf = (node) => node.getAttribute("id") || "";

  // Whether the user has typed into a form, or selected rows: everything below it is left unchanged.
  const changed = (field) => {
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field.tagName === "SELECT") return [...field.options].some((o) => o.selected !== o.defaultSelected);
    return field.type !== "hidden" && field.defaultValue !== undefined && field.value !== field.defaultValue;
  };
  const busy = (node) => node.tagName === "FORM" && (holds(node, document.activeElement) && document.activeElement.matches("input, select, textarea")
    || [...node.elements].some(changed));

  const keyOf = (node) => node.nodeType === 1 ? node.getAttribute("data-key") || idOf(node) : "";
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  function same(from, to) {
    if (from.nodeType !== 1) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (busy(from)) return;
    for (const { name } of [...from.attributes]) {
      const kept = name === "open" || name === "hidden" && from.hasAttribute("data-live-hidden");
      if (!to.hasAttribute(name) && !kept) from.removeAttribute(name);
    }
    for (const { name, value } of [...to.attributes]) {
      if (name === "hidden" && from.hasAttribute("data-shown")) continue;
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    children(from, to);
  }

  function children(from, to) {
    let at = from.firstChild;
    for (const next of [...to.childNodes]) {
      let match = at;
      if (!match || !alike(match, next)) {
        const key = keyOf(next);
        match = key ? [...from.childNodes].find((node) => alike(node, next)) : null;
      }
      if (match) {
        if (match !== at) from.insertBefore(match, at); else at = at.nextSibling;
        same(match, next);
      } else {
        from.insertBefore(document.importNode(next, true), at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      // Keeps parts that the user is working on.
      if (!(gone.nodeType === 1 && holds(gone, document.activeElement) && gone !== document.body)) gone.remove();
    }
  }

  // Ages advance between two readings, by the server's clock.
  let ahead = Number(html.dataset.now) - Date.now();
  const two = (a, x, b, y, both) => both && b > 0 ? a + " " + x + " " + b + " " + y : a + " " + x;
  function duration(seconds) {
    const s = Math.max(0, Math.floor(seconds));
    if (s < 60) return s + " s";
    if (s < 3600) return two(Math.floor(s / 60), "min", s % 60, "s", s < 600);
    if (s < 86400) return two(Math.floor(s / 3600), "h", Math.floor(s / 60) % 60, "min", true);
    const hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
    return two(Math.floor(s / 86400), "d", hours || minutes, hours ? "h" : "min", s < 864000);
  }
  function age() {
    const now = Date.now() + ahead;
    for (const node of document.querySelectorAll("[data-since]")) node.textContent = duration((now - node.dataset.since) / 1000);
    for (const node of document.querySelectorAll("[data-at]")) {
      const by = (now - node.dataset.at) / 1000;
      node.textContent = by >= 0 ? duration(by) + " ago" : "in " + duration(-by);
    }
  }

  let tag = null, asking = false;
  async function refresh() {
    if (asking || document.hidden || stored("live", "1") !== "1") return;
    asking = true;
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, credentials: "same-origin", redirect: "error", cache: "no-store" });
      // The numbers are the same, but from another reading.
      if (answer.status === 304) tag = answer.headers.get("ETag") || tag;
      if (answer.status === 200 || answer.status === 503) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const main = page.getElementById("content");
        if (main) {
          tag = answer.headers.get("ETag");
          html.dataset.now = page.documentElement.dataset.now;
          ahead = Number(html.dataset.now) - Date.now();
          // The result of an action is shown once, by the page that the action led to.
          main.querySelectorAll(":scope > .done").forEach((node) => node.remove());
          const done = document.querySelector("main > .done");
          if (done && Date.now() - loaded > 20000) done.remove(); else if (done) main.prepend(document.importNode(done, true));
          same(document.getElementById("content"), main);
          const read = document.querySelector(".bottom .read"), now = page.querySelector(".bottom .read");
          if (read && now) same(read, now);
          dress();
        }
      }
      document.body.classList.toggle("stale", answer.status >= 400);
    } catch (error) {
      // A missing response is no bug of the page; any other error is, and is logged to the console.
      if (!(error instanceof TypeError && /fetch/i.test(error.message))) console.error(error);
      document.body.classList.add("stale");
    } finally {
      asking = false;
      age();
    }
  }
  const loaded = Date.now();
  const isForm = () => document.querySelector("main form[data-asks]") !== null || document.querySelector("main [data-once]") !== null;

  function copy(button) {
    const text = document.getElementById(button.dataset.copy).textContent;
    const label = button.firstChild;
    const told = () => { label.nodeValue = "Copied"; setTimeout(() => { label.nodeValue = "Copy"; }, 2000); };
    // In a field of its own: a hidden element cannot be selected.
    const byHand = () => {
      const field = document.createElement("textarea");
      field.value = text;
      field.className = "vh";
      document.body.append(field);
      field.select();
      if (document.execCommand("copy")) told();
      field.remove();
      button.focus();
    };
    // Without https there is no clipboard API.
    if (navigator.clipboard && isSecureContext) navigator.clipboard.writeText(text).then(told, byHand); else byHand();
  }

  // The pause command follows the selected duration.
  function follow() {
    for (const code of document.querySelectorAll("[data-select]")) {
      const select = document.getElementById(code.dataset.select);
      if (!select) continue;
      code.dataset.without ??= code.textContent;
      const text = select.value ? code.dataset.with.replace("SECONDS", select.value) : code.dataset.without;
      if (code.textContent !== text) code.textContent = text;
    }
  }

  // Shows the values of a chart under the pointer.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const AMOUNTS = {
    jobs: (n) => n.toLocaleString("en") + (n === 1 ? " job" : " jobs"),
    rate: (n) => (n === 0 ? "0" : n < 0.1 ? n.toFixed(2) : n < 10 ? n.toFixed(1) : Math.round(n).toLocaleString("en")) + "/s",
    time: (n) => n > 0 && n < 1 ? Math.round(n * 1000) + " ms" : duration(n),
  };
  function point(event) {
    const svg = event.target.closest?.("svg.plot");
    tip.hidden = !svg;
    if (!svg) return;
    const { from, step, points, unit, zone } = svg.dataset;
    const box = svg.getBoundingClientRect();
    const n = Math.min(points - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * points)));
    const at = new Date(Number(from) + n * Number(step));
    const form = { timeZone: zone, hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    if (step >= 3600000) Object.assign(form, { day: "numeric", month: "short" });
    let time;
    try { time = new Intl.DateTimeFormat("en", form).format(at) + " " + zone; } catch { time = at.toISOString(); }
    const lines = [...svg.querySelectorAll("[data-values]")].map((line) => {
      const value = line.dataset.values.split(",")[n];
      return line.dataset.name + " " + (value ? AMOUNTS[unit](Number(value)) : "\u2013");
    });
    tip.textContent = [time, ...lines].join("\n");
    tip.style.left = Math.max(4, Math.min(event.pageX + 12, document.documentElement.clientWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = event.pageY + 14 + "px";
  }

  // Shows elements that need the script.
  function dress() {
    for (const node of document.querySelectorAll("[data-copy], .live, .keys, [data-all]")) {
      node.hidden = false;
      node.setAttribute("data-shown", "");
    }
    follow();
  }

  function go(path) { location.href = document.body.dataset.root + path; }
  let before = "";
  function key(event) {
    if (stored("keys", "1") !== "1" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, dialog")) return;
    const pressed = before + event.key;
    before = "";
    if (event.key === "/") { event.preventDefault(); document.getElementById("search").focus(); }
    else if (event.key === "?") { document.querySelector(".keys").scrollIntoView(); document.querySelector("[data-keys]").focus(); }
    else if (pressed === "go") go("");
    else if (pressed === "gq") go("queues");
    else if (pressed === "gd") go("dead");
    else if (event.key === "g") before = "g";
  }

  dress();
  for (const [name, node] of [["live", "[data-live]"], ["keys", "[data-keys]"]]) {
    const box = document.querySelector(node);
    if (!box) continue;
    box.checked = box.defaultChecked = stored(name, "1") === "1";
    box.addEventListener("change", () => { box.defaultChecked = box.checked; store(name, box.checked ? "1" : "0"); if (name === "live") refresh(); });
  }
  document.addEventListener("keydown", key);
  document.addEventListener("change", follow);
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
    const all = event.target.closest("[data-all]");
    if (all) for (const box of document.querySelectorAll("input[name=job]")) box.checked = all.checked;
  });
  // Submits each form once.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.getAttribute("method") !== "post") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "1";
  });
  addEventListener("pageshow", (event) => { if (event.persisted) document.querySelectorAll("form").forEach((form) => delete form.dataset.sent); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !isForm()) refresh(); });
  if (!isForm()) setInterval(refresh, EVERY);
  setInterval(age, 1000);
})();
