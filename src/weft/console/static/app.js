// The page: which view an address shows, the sums above it, and how old what is shown is.

import { clock, duration, el, fill, number, percent } from "./dom.js";
import { Model, countable, mark } from "./model.js";
import { copyLink, csv, png, save } from "./take.js";
import { TimeSlider } from "./time.js";
import "./map.js";
import "./compare.js";
import "./health.js";
import { reasonCount } from "./lists.js";
import "./namespaces.js";
import "./places.js";
import "./queues.js";

const model = new Model();
const view = document.getElementById("view");
const VIEWS = { map: "Map", waiting: "Waiting", namespaces: "Namespaces", queues: "Queues", events: "Events", compare: "Compare", health: "Health" };
const slider = new TimeSlider(model, document.getElementById("time"));
const OLD_S = 20; // a cluster that lives is shown anew every few seconds at least
let received = 0;
let copied = ""; // said in the place of "Copy link" for a moment
let refused = ""; // why the console wants a token

function route() {
  const [name, ...parts] = location.pathname.split("/").slice(1).map(decodeURIComponent);
  return { name: name || "map", parts, query: new URLSearchParams(location.search) };
}

function show() {
  const { name, parts, query } = route();
  if (refused) return signIn();
  const tag = `weft-${name}`;
  if (view.firstElementChild?.localName !== tag) view.replaceChildren(document.createElement(tag));
  if (model.ready) view.firstElementChild.show(model, parts, query);
  document.title = `${[VIEWS[name] ?? name, ...parts].join(" ")} · Weft`;
  frame(name);
}

/** A form for a token, in the place of the view. */
function signIn() {
  if (view.firstElementChild?.id === "sign-in") return fill(view.querySelector("[role=alert]"), refused);
  const field = el("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true });
  const form = el("form", { id: "sign-in", class: "card" }, el("h1", {}, "Sign in"),
    el("p", { role: "alert" }, refused), el("label", {}, "Token", field), el("button", {}, "Sign in"),
    el("p", { class: "empty" }, "You see the names of the pods that you have permission to list. The token is stored in this tab only."));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    model.signIn(field.value.trim());
    field.value = "";
  });
  view.replaceChildren(form);
  document.title = "Sign in · Weft";
  document.getElementById("sums").replaceChildren();
  field.focus();
}

function frame(current) {
  const links = Object.entries(VIEWS)
    .filter(([name]) => (name !== "events" || model.events.size) && (name !== "health" || model.about.health) && (name !== "compare" || model.about.policies?.length))
    .map(([name, text]) =>
      el("a", { href: `/${name}`, "aria-current": name === current ? "page" : null }, text,
        name === "waiting" && model.waiting.size ? el("b", {}, number(model.waiting.size)) : null));
  fill(document.querySelector("nav"), links);
  take();
  if (model.ready) fill(document.getElementById("sums"), sums());
}

/** What can be taken along from this view. */
function take() {
  const shown = view.firstElementChild;
  const name = `weft-${location.pathname.slice(1).replaceAll("/", "-") || "map"}`;
  const button = (text, onclick) => el("button", { type: "button", onclick }, text);
  fill(document.getElementById("take"),
    button(copied || "Copy link", async () => {
      copied = (await copyLink()) ? "Copied" : location.href;
      take();
      setTimeout(() => { copied = ""; take(); }, 3000);
    }),
    shown?.table && model.ready ? button("CSV", () => save(`${name}.csv`, csv(...shown.table()), "text/csv;charset=utf-8")) : null,
    pictures().length && model.ready ? button("PNG", async () => save(`${name}.png`, await png(pictures()))) : null);
}

/** The maps and charts that are shown. */
const pictures = () => [...view.querySelectorAll("canvas, svg.chart")].filter((each) => each.checkVisibility());

function sums() {
  const all = { gpus: 0, broken: 0, idle: 0, milli: 0, promised_milli: 0, memory_mib: 0, promised_mib: 0 };
  for (const gpu of model.gpus.values()) {
    if (!countable(gpu)) continue;
    all.gpus += 1;
    all.broken += gpu.broken ? 1 : 0;
    all.idle += gpu.pods || gpu.broken ? 0 : 1;
    for (const name of ["milli", "promised_milli", "memory_mib", "promised_mib"]) all[name] += gpu[name] ?? 0;
  }
  let closed = 0, kept = 0;
  for (const node of model.nodes.values()) closed += node.closed ? 1 : 0;
  for (const pod of model.pods.values()) kept += pod.kept ? 1 : 0;
  const tile = (label, value, more, part) =>
    el("div", { class: "tile" }, el("span", {}, label), el("strong", {}, value), el("small", {}, more),
      part == null ? null : el("meter", { min: 0, max: 1, value: part, "aria-label": label }));
  const { milli, memory_mib: mib } = all;
  return [
    tile("Cores promised", percent(all.promised_milli, milli),
      `${(all.promised_milli / 1000).toFixed(1)} of ${number(milli / 1000)} GPUs`, milli && all.promised_milli / milli),
    tile("Memory promised", percent(all.promised_mib, mib),
      `${number(all.promised_mib / 1024)} of ${number(mib / 1024)} GiB`, mib && all.promised_mib / mib),
    tile("Idle GPUs", number(all.idle), `of ${number(all.gpus)}`),
    tile("Pods placed", number(model.pods.size - kept), `on ${number(model.nodes.size)} nodes`),
    tile("Pods waiting", number(model.waiting.size), `reasons: ${reasonCount(model)}`),
    tile("Nodes closed", number(closed), all.broken ? `${all.broken} GPUs out of service` : "all GPUs in service"),
  ];
}

function freshness() {
  const { kind, about, lives } = model.about;
  const box = document.getElementById("freshness");
  if (!model.ready) return fill(box, refused ? "" : "reading …");
  const old = Date.now() / 1000 - received;
  const state = !model.connected || (lives && old > OLD_S) ? "lost" : model.lost ? "silent" : lives ? "live" : "still";
  box.className = state;
  const text = {
    lost: `Connection lost: as of ${clock(model.at)}, ${duration(old + model.lostFor)} ago`,
    silent: `The API server is silent: as of ${clock(model.at)}, ${duration(old + model.lostFor)} ago`,
    live: `Live, ${clock(model.at)}`,
    still: kind === "decisions" ? slider.words(model.at) : `Taken ${new Date(model.at * 1000).toLocaleString("en-GB")}`,
  }[state];
  const what = { cluster: "Cluster: ", demo: "Demo: ", snapshot: "Snapshot: ", decisions: "Record: " }[kind];
  fill(box, el("span", { class: "what" }, what, about),
    el("span", { class: "age", title: state === "silent" ? model.lost : null }, text));
}

function go(address, replace = false) {
  const to = new URL(address, location.href);
  const at = new URLSearchParams(location.search).get("at");
  if (at !== null && !to.searchParams.has("at")) to.searchParams.set("at", at); // other views show the same moment
  history[replace ? "replaceState" : "pushState"](null, "", to);
  show();
  if (!replace) scrollTo(0, 0);
}

/** Tables that are wider than the screen can be scrolled with the keyboard. */
function reach() {
  for (const box of view.querySelectorAll(".wide"))
    if (box.scrollWidth > box.clientWidth) box.setAttribute("tabindex", "0");
    else box.removeAttribute("tabindex");
}
new MutationObserver(reach).observe(view, { childList: true, subtree: true });
addEventListener("resize", reach);

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.getAttribute("href"));
  view.focus({ preventScroll: true });
});
document.addEventListener("weft-go", (event) => go(event.detail.address, event.detail.replace));
addEventListener("popstate", () => {
  show();
  slider.follow();
});
model.addEventListener("change", () => {
  received = Date.now() / 1000;
  slider.show();
  show();
  freshness();
  requestAnimationFrame(() => mark("drawn"));
});
model.addEventListener("connection", () => {
  freshness();
  if (!model.connected) return;
  slider.follow();
  show();
});
model.addEventListener("refused", (event) => {
  refused = event.detail;
  show();
});
model.addEventListener("signed-in", () => {
  refused = ""; // the form stays until there is something to show
  model.forget();
});
setInterval(freshness, 1000);
show();
freshness();
model.follow();
