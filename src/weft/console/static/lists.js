// Waiting pods, grouped by reason; and what happened lately.

import { clock, duration, el, fill, nodeLink, number, podLink } from "./dom.js";
import { group } from "./model.js";

const PAGE = 50;

class WeftWaiting extends HTMLElement {
  #open = new Set(); // groups of which all is shown

  show(model) {
    this.model = model;
    const groups = [...group(model.waiting.values(), (pod) => pod.group)].sort((a, b) => b[1].length - a[1].length);
    fill(this, el("h1", {}, "Waiting"),
      groups.length ? null : el("p", { class: "empty" }, "No pod waits."),
      groups.map(([reason, pods]) => this.#section(reason, pods)));
  }

  table() {
    return [["namespace", "pod", "group", "waits_s", "asks", "reason", "change", "ends"],
      [...this.model.waiting.values()].map((pod) => [pod.namespace, pod.name, pod.group, pod.since_s ? Math.round(this.model.at - pod.since_s) : "", pod.asks, pod.reason, pod.change, pod.ends])];
  }

  #section(reason, pods) {
    pods.sort((a, b) => (a.since_s ?? 0) - (b.since_s ?? 0));
    const shown = this.#open.has(reason) ? pods : pods.slice(0, PAGE);
    return el("section", { "data-key": reason, class: "card" },
      el("h2", {}, reason, el("b", {}, number(pods.length))),
      el("div", { class: "wide" }, el("table", { class: "waiting" },
        el("thead", {}, el("tr", {}, ["Pod", "Asks", "Waits", "Why", "Smallest change", "Change that ends a pod"].map((text) => el("th", {}, text)))),
        el("tbody", {}, shown.map((pod) => this.#row(pod))))),
      pods.length > shown.length
        ? el("button", { type: "button", onclick: () => { this.#open.add(reason); this.show(this.model); } }, `Show all ${number(pods.length)}`)
        : null);
  }

  #row(pod) {
    const more = (pod.changes ?? 0) - (pod.change ? 1 : 0) - (pod.ends ? 1 : 0);
    return el("tr", { "data-key": pod.uid },
      el("td", {}, podLink(pod), el("small", {}, [pod.gang && `group ${pod.gang}`, pod.priority && `priority ${pod.priority}`].filter(Boolean).join(", "))),
      el("td", { class: "asks" }, pod.asks ?? ""),
      el("td", { class: "n" }, pod.since_s ? duration(this.model.at - pod.since_s) : ""),
      el("td", {}, pod.reason),
      el("td", {}, pod.change ?? "", more > 0 ? el("small", {}, `or ${more} more`) : null),
      el("td", {}, pod.ends ?? ""));
  }
}

class WeftEvents extends HTMLElement {
  table() {
    return [["at", "kind", "pod", "node", "text"],
      [...this.model.events.values()].map((event) => [new Date(event.at_s * 1000).toISOString(), event.kind, event.pod, event.node, event.text])];
  }

  show(model) {
    this.model = model;
    const events = [...model.events.values()].sort((a, b) => b.number - a.number);
    fill(this, el("h1", {}, "Events"), el("div", { class: "card wide" }, el("table", { class: "events" },
      el("thead", {}, el("tr", {}, ["Time", "Event", "Pod or node", "Details"].map((text) => el("th", {}, text)))),
      el("tbody", {}, events.map((event) => el("tr", { "data-key": event.number },
        el("td", { class: "n" }, clock(event.at_s)), el("td", {}, el("span", { class: `kind ${event.kind.replace(" ", "-")}` }, event.kind)),
        el("td", {}, event.pod ? link(model, event.pod) : event.node ? nodeLink(event.node) : ""),
        el("td", {}, event.text)))))));
  }
}

/** The pod's page, where it is still there. */
function link(model, name) {
  const pod = model.placed(name) ?? model.waitingByName.get(name);
  return pod ? podLink(pod) : name;
}

customElements.define("weft-waiting", WeftWaiting);
customElements.define("weft-events", WeftEvents);
