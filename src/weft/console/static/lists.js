// Waiting pods, grouped by reason; and what happened lately.

import { clock, duration, el, fill, nodeLink, number, podLink } from "./dom.js";
import { group } from "./model.js";

const PAGE = 50, MEMBERS = 200;
const TOGETHER = "waits for its group"; // that a pod alone would fit

/** A function of a model's pending pods, computed once for each change of them. */
function once(make) {
  const known = new WeakMap();
  return (model) => {
    if (known.get(model)?.waits !== model.waits) known.set(model, { waits: model.waits, made: make(model) });
    return known.get(model).made;
  };
}

/** Pending pods by reason, the reason of most pods first: a list of lists, each a pod alone or the pods of a group. A
 * group is where the first of its pods is that not only waits for the others. */
export const waitingByReason = once(groupsOf);

/** The number of reasons, in one pass: it is on every page. */
export const reasonCount = once(countReasons);

function groupsOf(model) {
  const all = [...model.waiting.values()].sort((a, b) => (a.since_s ?? 0) - (b.since_s ?? 0));
  const units = [...group(all, (pod) => (pod.gang ? `group ${pod.gang}` : pod.uid)).values()];
  for (const pods of units) {
    const first = pods.findIndex((pod) => pod.group !== TOGETHER);
    if (first > 0) pods.unshift(...pods.splice(first, 1));
  }
  const pods = (found) => found.reduce((sum, each) => sum + each.length, 0);
  return [...group(units, ([first]) => first.group)].map((each) => [each, pods(each[1])])
    .sort((a, b) => b[1] - a[1]).map(([each]) => each);
}

function countReasons(model) {
  const reasons = new Set(), firsts = new Map();
  for (const pod of model.waiting.values()) {
    if (!pod.gang) reasons.add(pod.group);
    else if (isBefore(pod, firsts.get(pod.gang))) firsts.set(pod.gang, pod);
  }
  for (const { group: reason } of firsts.values()) reasons.add(reason);
  return reasons.size;
}

/** Whether a group's pod rather than this other one is its first. */
function isBefore(pod, other) {
  if (!other) return true;
  const waits = pod.group === TOGETHER, otherWaits = other.group === TOGETHER;
  return waits === otherWaits ? (pod.since_s ?? 0) < (other.since_s ?? 0) : otherWaits;
}

/** `reason_group` is the heading under which the page has the pod. */
export const waitingTable = (model, pods) => [["namespace", "pod", "gang", "reason_group", "waits_s", "asks", "reason", "change", "ends"],
  pods.map((pod) => [pod.namespace, pod.name, pod.gang, pod.group, pod.since_s ? Math.round(model.at - pod.since_s) : "", pod.asks, pod.reason, pod.change, pod.ends])];

class WeftWaiting extends HTMLElement {
  #open = new Set(); // reasons of which all is shown
  #unfolded = new Set(); // groups whose pods are shown

  show(model) {
    this.model = model;
    const groups = waitingByReason(model);
    fill(this, el("h1", {}, "Waiting"),
      groups.length ? null : el("p", { class: "empty" }, "No pod waits."),
      groups.map(([reason, units]) => this.#section(reason, units)));
  }

  table() {
    return waitingTable(this.model, [...this.model.waiting.values()]);
  }

  #section(reason, units) {
    const shown = this.#open.has(reason) ? units : units.slice(0, PAGE);
    return el("section", { "data-key": reason, class: "card" },
      el("h2", {}, reason, el("b", {}, number(units.flat().length))),
      el("div", { class: "wide" }, el("table", { class: "waiting" },
        el("thead", {}, el("tr", {}, ["Pod", "Asks", "Waits", "Why", "Smallest change", "Change that ends a pod"].map((text) => el("th", {}, text)))),
        el("tbody", {}, shown.map((pods) => (pods.length > 1 ? this.#group(pods) : this.#row(pods[0])))))),
      units.length > shown.length
        ? el("button", { type: "button", onclick: () => this.#toggle(this.#open, reason) }, `Show all ${number(units.length)}`)
        : null);
  }

  #toggle(set, key) {
    if (!set.delete(key)) set.add(key);
    this.show(this.model);
  }

  /** A group of pods as one row, and a row for each of its pods where it is unfolded. */
  #group(pods) {
    const { gang } = pods[0];
    const unfolded = this.#unfolded.has(gang);
    const asks = [...group(pods, (pod) => pod.asks ?? "")].map(([each, alike]) => each && `${number(alike.length)} × ${each}`).join("; ");
    const since = Math.min(...pods.map((pod) => pod.since_s || Infinity));
    const button = el("button", { type: "button", "aria-expanded": String(unfolded), onclick: () => this.#toggle(this.#unfolded, gang) },
      `group ${gang}`, el("small", {}, `${number(pods.length)} pods`));
    return [cells(this.model, { ...pods[0], asks, since_s: since < Infinity ? since : 0 }, `group ${gang}`, button),
      unfolded ? pods.slice(0, MEMBERS).map((pod) => this.#row(pod, "member")) : null,
      unfolded && pods.length > MEMBERS
        ? el("tr", { "data-key": `more of ${gang}` }, el("td", { colspan: 6 }, `The first ${MEMBERS} of ${number(pods.length)} are shown; the CSV has all.`)) : null];
  }

  #row(pod, looks) {
    return cells(this.model, pod, pod.uid,
      [podLink(pod), el("small", {}, [pod.gang && !looks && `group ${pod.gang}`, pod.priority && `priority ${pod.priority}`].filter(Boolean).join(", "))], looks);
  }
}

function cells(model, pod, key, name, looks) {
  const more = (pod.changes ?? 0) - (pod.change ? 1 : 0) - (pod.ends ? 1 : 0);
  return el("tr", { "data-key": key, class: looks },
    el("td", {}, name),
    el("td", { class: "asks" }, pod.asks ?? ""),
    el("td", { class: "n" }, pod.since_s ? duration(model.at - pod.since_s) : ""),
    el("td", {}, pod.reason),
    el("td", {}, pod.change ?? "", more > 0 ? el("small", {}, `or ${more} more`) : null),
    el("td", {}, pod.ends ?? ""));
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
