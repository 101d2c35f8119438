// The day of a record beside the same day under another policy, at the same moment.

import { chart } from "./chart.js";
import { cores, duration, el, fill, folded, memory, number, stackedTable, unfold } from "./dom.js";
import { Model, ask, byName, countable } from "./model.js";
import { numbered, timeless } from "./time.js";

const AGAIN_MS = 700, PAGE = 200;
const MILLI = 1, MIB = 2, PLACED = 3, WAITING = 4, IDLE = 5; // of a row of sums; 0 is the time

class WeftCompare extends HTMLElement {
  #asked = ""; // the policy and moment that are on their way, or shown
  #rows = PAGE;
  #sorted = []; // the GPUs of both maps: moments have mostly the same ones

  connectedCallback() {
    this.both = [new Model(), new Model()];
    this.maps = [0, 1].map(() => el("weft-map", { class: "bare" }));
    this.choice = el("select", { name: "policy" });
    this.choice.onchange = () => this.#go(`/compare${this.choice.value ? `?policy=${encodeURIComponent(this.choice.value)}` : ""}`);
    this.said = el("div", { role: "status" });
    this.names = [0, 1].map(() => el("h2", {}));
    this.days = el("div", { class: "days" }, this.maps.map((map, n) => el("section", { class: "card" }, this.names[n], map)));
    this.cells = folded("The maps as a table", () => this.#cells());
    this.sums = el("div");
    this.append(el("h1", {}, "Compare"),
      el("p", {}, "The recorded day, and the same nodes and pods under another policy, which is simulated here. Pods run as long as recorded, counted from their new placement."),
      el("form", { class: "tools" }, el("label", {}, "Other policy", this.choice)), this.said, this.sums, this.days, this.cells);
    this.days.hidden = this.cells.hidden = true;
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
  }

  show(model, parts, query) {
    this.model = model;
    this.query = query;
    const policy = query.get("policy") ?? "";
    if (!this.choice.options.length)
      fill(this.choice, ["", ...(model.about.policies ?? [])].map((name) => el("option", { value: name }, name || "choose one")));
    if (this.choice !== document.activeElement) this.choice.value = policy;
    if (policy !== this.policy) {
      this.policy = policy;
      this.day = undefined;
      this.#asked = "";
      clearTimeout(this.timer);
      if (policy) this.#follow(policy);
    }
    this.#draw();
  }

  table() {
    if (this.day?.state !== "ready") return [["elapsed_s"], []];
    const names = ["gpu_milli", "promised_mib", "placed", "waiting", "idle"];
    return [["elapsed_s", ...names, ...names.map((name) => `${name}_${this.policy}`)],
      this.day.recorded.map((row, n) => [...row, ...this.day.other[n].slice(1)])];
  }

  #go(address) {
    this.dispatchEvent(new CustomEvent("weft-go", { bubbles: true, detail: { address, replace: true } }));
  }

  /** Ask how far it is until it is ready, or failed. */
  async #follow(policy) {
    try {
      const answer = await ask(`/api/compare?${new URLSearchParams({ policy })}`);
      const day = await answer.json();
      if (this.policy !== policy || !this.isConnected) return;
      this.day = answer.ok ? day : { state: "failed", text: day.error };
    } catch {
      this.day = { policy, state: "simulating", text: "The console does not answer." };
    }
    const over = this.day.policy === policy && this.day.state === "ready";
    if (!over && this.day.state !== "failed") this.timer = setTimeout(() => this.#follow(policy), AGAIN_MS);
    this.#go(location.href); // the page has other buttons then
  }

  #again() {
    this.day = undefined;
    this.#draw();
    this.#follow(this.policy);
  }

  #draw() {
    const { day, policy } = this;
    const ready = day?.state === "ready" && day.policy === policy;
    this.days.hidden = this.cells.hidden = !ready;
    fill(this.said, !policy || ready ? (day?.text ? el("p", { class: "empty" }, day.text) : "") : this.#progress(day));
    if (!ready) return fill(this.sums);
    const at = Math.min(day.recorded.length - 1, Math.max(0, parseInt(this.query.get("at") ?? day.recorded.length - 1, 10) || 0));
    this.#fetch(policy, at);
    fill(this.names[0], "As recorded");
    fill(this.names[1], policy);
    fill(this.sums, this.#table(day, at), this.#charts(day, at));
    this.#show();
  }

  #show() {
    this.both.forEach((day, n) => day.ready && this.maps[n].show(day, [], new URLSearchParams()));
    unfold(this.cells);
  }

  /** Each GPU in both maps, with the difference. */
  #cells() {
    const keys = new Set(this.both.flatMap((day) => [...day.gpus].filter(([, gpu]) => countable(gpu)).map(([key]) => key)));
    if (this.#sorted.length !== keys.size || !this.#sorted.every((key) => keys.has(key))) this.#sorted = [...keys].sort(byName);
    const sorted = this.#sorted, shown = sorted.slice(0, this.#rows);
    const three = (key, column, words) => {
      const [left, right] = this.both.map((day) => day.gpus.get(key)?.[column] ?? 0);
      return [words(left), words(right), difference(right - left, words)];
    };
    const head = ["Cores", "Memory"].flatMap((what) => ["recorded", this.policy, "difference"].map((each) => `${what}, ${each}`));
    return [el("div", { class: "wide" }, stackedTable(["GPU", ...head], head.length, shown.map((key) =>
      [key, key, ...three(key, "promised_milli", cores), ...three(key, "promised_mib", memory)]))),
    sorted.length > shown.length
      ? el("button", { type: "button", onclick: () => { this.#rows += 10 * PAGE; unfold(this.cells); } },
        `Show more: ${number(shown.length)} of ${number(sorted.length)} shown`)
      : null];
  }

  #progress(day) {
    if (day?.state === "failed") return [el("p", { class: "trouble", role: "alert" }, day.text),
      el("button", { type: "button", onclick: () => this.#again() }, "Try again")];
    const what = day?.text || (day?.state === "reading" ? "Reading the simulated decisions …" : `Simulating the day under ${this.policy} …`);
    return [el("p", {}, what), el("progress", { max: 100, value: day?.state === "simulating" ? day.percent : null, "aria-label": "Progress" })];
  }

  /** Fetch both pictures, one moment at a time: while one is on its way, only the latest wish is kept. */
  async #fetch(policy, at) {
    this.wish = { policy, number: at };
    const key = () => `${this.wish.policy} ${this.wish.number}`;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.isConnected && this.wish.policy === this.policy && key() !== this.#asked) {
        const wanted = this.#asked = key();
        const answer = await ask(`/api/compare?${new URLSearchParams(this.wish)}`);
        if (this.#asked !== wanted) continue; // another policy was chosen
        if (!answer.ok) return this.#gone(await answer.json());
        const { recorded, other } = await answer.json();
        this.both[0].take(recorded);
        this.both[1].take(other);
        this.#show();
        this.dataset.shown = wanted;
      }
    } catch (failure) {
      console.debug("weft:", failure);
      this.#asked = ""; // asked for again once the console answers
    } finally {
      this.busy = false;
    }
  }

  /** The console does not have the day any more: what is drawn is of another moment. */
  #gone({ error }) {
    this.day = { policy: this.policy, state: "failed", text: `The simulated day is no longer in memory: ${error}.` };
    this.#asked = "";
    this.#draw();
  }

  #table(day, at) {
    const [left, right] = [day.recorded[at], day.other[at]], times = day.recorded.map(([elapsed]) => elapsed);
    const row = (name, column, words) => el("tr", {}, el("th", { scope: "row" }, name),
      [left, right].map((sums) => el("td", { class: "n" }, words(sums[column]))), el("td", { class: "n" }, difference(right[column] - left[column], words)));
    return el("section", { class: "card wide" }, el("h2", {}, timeless(times) ? numbered(at, times) : `${duration(left[0])} after the start`), el("table", {},
      el("thead", {}, el("tr", {}, ["", "As recorded", this.policy, "Difference"].map((text) => (text ? el("th", { scope: "col" }, text) : el("td", {}))))),
      el("tbody", {}, row("GPUs promised", MILLI, (milli) => (milli / 1000).toFixed(2)), row("Memory promised", MIB, memory),
        row("Pods placed", PLACED, number), row("Pods waiting", WAITING, number), row("Idle GPUs", IDLE, number))));
  }

  #charts(day, at) {
    const lines = (column, words) => [["as recorded", day.recorded], [this.policy, day.other]].map(([name, rows]) => ({
      name, words, points: day.recorded.map((row, n) => [row[0], rows[n][column]]) }));
    const now = day.recorded[at][0];
    return el("div", { class: "days" },
      el("section", { class: "card" }, chart("GPUs promised", lines(MILLI, (milli) => (milli / 1000).toFixed(2)), { now })),
      el("section", { class: "card" }, chart("Pods waiting", lines(WAITING, number), { now })));
  }
}

const difference = (by, words) => (by ? `${by > 0 ? "+" : "−"}${words(Math.abs(by))}` : "0");

customElements.define("weft-compare", WeftCompare);
