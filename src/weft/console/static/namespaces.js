// Namespaces: what each holds and waits for; and the page of one.

import { cores, duration, el, fill, gpuLink, memory, nodeLink, number, path, podLink, stackedTable } from "./dom.js";
import { byName } from "./model.js";

const PAGE = 200;

/** By namespace; those that the viewer may not know are one, "". */
function sums(model) {
  const found = new Map();
  const of = (namespace) => {
    if (!found.has(namespace)) found.set(namespace, { namespace, pods: 0, milli: 0, mib: 0, waiting: 0 });
    return found.get(namespace);
  };
  for (const pod of model.pods.values()) {
    const sum = of(pod.namespace);
    if (pod.kept) continue;
    sum.pods += 1;
    if (!model.nodes.has(pod.node)) continue; // gone, with its GPUs
    sum.milli += pod.gpu_milli ?? 0;
    for (const [, mib] of pod.shares ?? []) sum.mib += mib;
  }
  for (const pod of model.waiting.values()) of(pod.namespace).waiting += 1;
  return [...found.values()].sort((a, b) => b.milli - a.milli || byName(a.namespace, b.namespace));
}

class WeftNamespaces extends HTMLElement {
  show(model) {
    this.model = model;
    const head = ["Namespace", "Pods placed", "GPUs promised", "Memory promised", "Pods waiting"];
    const rows = sums(model).map((sum) => [sum.namespace || "/",
      sum.namespace ? el("a", { href: path("namespace", sum.namespace) }, sum.namespace) : el("span", { class: "hidden-name" }, "others"),
      number(sum.pods), (sum.milli / 1000).toFixed(2), memory(sum.mib), number(sum.waiting)]);
    fill(this, el("h1", {}, "Namespaces"), el("div", { class: "card wide" }, stackedTable(head, 4, rows)));
  }

  table() {
    return [["namespace", "pods", "gpu_milli", "gpu_mib", "waiting"],
      sums(this.model).map((sum) => [sum.namespace, sum.pods, sum.milli, sum.mib, sum.waiting])];
  }
}

/** The pods that belong to something: those with a place, and those that wait. */
export const members = (model, belongs) => ({
  pods: [...model.pods.values()].filter((pod) => belongs(pod) && !pod.kept)
    .sort((a, b) => byName(`${a.namespace}/${a.name}`, `${b.namespace}/${b.name}`)),
  waiting: [...model.waiting.values()].filter(belongs),
});

/** Two cards: who of them holds what, and who waits why. */
export function membersInCards(model, { pods, waiting }) {
  const share = (pod, at) => (pod.shares ?? []).reduce((sum, each) => sum + each[at], 0);
  const first = (rows) => (rows.length > PAGE ? el("p", { class: "empty" }, `The first ${PAGE} of ${number(rows.length)} are shown.`) : null);
  return [
    el("section", { class: "card" }, el("h2", {}, "Placed", el("b", {}, number(pods.length))), pods.length ? el("div", { class: "wide" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Pod", "Place", "Cores", "Memory", "For"].map((text) => el("th", {}, text)))),
      el("tbody", {}, pods.slice(0, PAGE).map((pod) => el("tr", { "data-key": pod.uid }, el("td", {}, podLink(pod)),
        el("td", { class: "place" }, nodeLink(pod.node), (pod.shares ?? []).map(([gpu]) => [", ", gpuLink(pod.node, gpu)])),
        el("td", { class: "n" }, cores(share(pod, 2))), el("td", { class: "n" }, memory(share(pod, 1))),
        el("td", { class: "n" }, pod.since_s ? duration(model.at - pod.since_s) : "")))))) : el("p", { class: "empty" }, "No pod holds a place."), first(pods)),
    el("section", { class: "card" }, el("h2", {}, "Waiting", el("b", {}, number(waiting.length))), waiting.length ? el("div", { class: "wide" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Pod", "Asks", "Why"].map((text) => el("th", {}, text)))),
      el("tbody", {}, waiting.slice(0, PAGE).map((pod) => el("tr", { "data-key": pod.uid }, el("td", {}, podLink(pod)),
        el("td", {}, pod.asks ?? ""), el("td", {}, pod.reason)))))) : el("p", { class: "empty" }, "No pod waits."), first(waiting))];
}

/** What they hold of which GPU, for CSV. */
export const membersTable = ({ pods }) => [["namespace", "pod", "node", "gpu", "milli", "mib"],
  pods.flatMap((pod) => (pod.shares?.length ? pod.shares : [["", 0, 0]])
    .map(([gpu, mib, milli]) => [pod.namespace, pod.name, pod.node, gpu, milli, mib]))];

class WeftNamespace extends HTMLElement {
  show(model, [name]) {
    this.members = members(model, (pod) => pod.namespace === name);
    fill(this, el("h1", {}, el("small", {}, "Namespace"), name), membersInCards(model, this.members));
  }

  table() {
    return membersTable(this.members);
  }
}

customElements.define("weft-namespaces", WeftNamespaces);
customElements.define("weft-namespace", WeftNamespace);
