// Health: what `weft status` and `weft doctor` say of the cluster, with remedies.

import { el, fill, number } from "./dom.js";
import { ask } from "./model.js";

const AGAIN_MS = 30_000;
const LEVELS = { wrong: "wrong", advice: "advice", good: "good" };

class WeftHealth extends HTMLElement {
  connectedCallback() {
    this.#ask();
    this.timer = setInterval(() => this.#ask(), AGAIN_MS);
  }

  disconnectedCallback() {
    clearInterval(this.timer);
  }

  show() {
    const { said } = this;
    fill(this, el("h1", {}, "Health"), !said ? el("p", { class: "empty" }, "reading …") : said.error
      ? el("p", { class: "empty" }, said.error) : [el("p", {}, said.head.join(" ")), this.#findings(said.findings), this.#pods(said.pods)]);
  }

  table() {
    return [["level", "check", "found", "remedy"], this.said?.findings ?? []];
  }

  #findings(findings) {
    return el("section", { class: "card wide" }, el("h2", {}, "Checks"), el("table", {},
      el("thead", {}, el("tr", {}, ["Level", "Check", "What was found", "Remedy"].map((text) => el("th", {}, text)))),
      el("tbody", {}, findings.map(([level, check, text, mend]) => el("tr", {},
        el("td", {}, el("span", { class: `kind ${level}` }, LEVELS[level])), el("td", {}, check), el("td", {}, text),
        el("td", {}, mend ? el("code", {}, mend) : ""))))));
  }

  #pods(pods) {
    return el("section", { class: "card wide" }, el("h2", {}, "Pods by state"), pods.length ? el("table", {},
      el("thead", {}, el("tr", {}, ["State", "Count", "Oldest", "Reason"].map((text) => el("th", {}, text)))),
      el("tbody", {}, pods.map(({ state, count, oldest, reason }) => el("tr", {},
        el("td", {}, state), el("td", { class: "n" }, number(count)), el("td", {}, oldest), el("td", {}, reason))))) : el("p", { class: "empty" }, "No pod requests GPUs."));
  }

  async #ask() {
    try {
      const answer = await ask("/api/health");
      this.said = await answer.json();
    } catch {
      this.said = { error: "The console does not answer." };
    }
    if (this.isConnected) this.show();
  }
}

customElements.define("weft-health", WeftHealth);
