// Teams' queues, as `weft queues` has them; and the page of one.

import { bar, el, fill, memory, number, queueLink, stackedTable } from "./dom.js";
import { byName } from "./model.js";
import { members, membersInCards, membersTable } from "./namespaces.js";

const PAGE = 200;
const ORDERS = {
  fair: "Order fair: the queue that holds the least relative to its weight is next.",
  priority: "Order priority: the pod with the highest priority is next, whatever its queue.",
};
const amount = (value) => `${+value.toFixed(3)}`;
const rowsOf = (model) => [...model.queues.values()].sort((a, b) => b.share_percent - a.share_percent || byName(a.queue, b.queue));
const guarantee = (row) => row.guarantee.map((each) => `${each.setting} ${amount(each.configured)}`).join(", ");
const limits = (row) => row.limits.map((each) => `${each.setting} ${amount(each.held)}/${amount(each.configured)}`).join(", ");

class WeftQueues extends HTMLElement {
  show(model) {
    this.model = model;
    const head = ["Queue", "Weight", "Share", "GPUs", "Memory", "Borrowed", "Waiting", "Guarantee", "Limits (held/most)"];
    const rows = rowsOf(model).slice(0, PAGE).map((row) => [row.queue || "/",
      queueLink(row.queue) || el("span", { class: "hidden-name" }, "other queues"), row.weight, `${number(row.share_percent, 1)} %`,
      number(row.gpus, 2), memory(row.gpu_memory_mib), number(row.borrowed_gpus, 2),
      row.waiting ? `${number(row.waiting)} (${number(row.waiting_gpus)} GPUs)` : 0, guarantee(row), limits(row)]);
    fill(this, el("h1", {}, "Queues"), el("p", { class: "empty" }, ORDERS[model.queueOrder] ?? ""),
      el("div", { class: "card wide" }, stackedTable(head, 6, rows)),
      model.queues.size > PAGE ? el("p", { class: "empty" }, `The first ${PAGE}; the CSV has all.`) : null);
  }

  table() {
    return [["queue", "weight", "share_percent", "gpus", "mib", "pods", "borrowed_gpus", "waiting", "waiting_gpus", "guarantee", "limits"],
      rowsOf(this.model).map((row) => [row.queue, row.weight, row.share_percent, row.gpus, row.gpu_memory_mib, row.pods, row.borrowed_gpus, row.waiting,
        row.waiting_gpus, guarantee(row), limits(row)])];
  }
}

class WeftQueue extends HTMLElement {
  show(model, [name]) {
    const row = model.queues.get(name);
    this.members = members(model, (pod) => pod.queue === name);
    fill(this, el("h1", {}, el("small", {}, "Queue"), name),
      row ? this.#terms(row) : el("p", { class: "empty" }, "There is no such queue now."), membersInCards(model, this.members));
  }

  #terms(row) {
    const line = (each, what) => el("div", { class: "measure" }, el("span", {}, what),
      bar([{ part: each.held / (each.configured || 1), colour: "var(--ramp-3)", title: each.setting }], `${what} ${each.setting}: ${amount(each.held)} of ${amount(each.configured)}`),
      el("span", { class: "n" }, `${each.setting}: ${amount(each.held)} of ${amount(each.configured)}`));
    return el("section", { class: "card" }, el("h2", {}, "Share", el("small", {}, `weight ${row.weight}`)),
      el("p", {}, `${row.share_percent} % of the cluster: ${amount(row.gpus)} GPUs, ${memory(row.gpu_memory_mib)}; ${amount(row.borrowed_gpus)} of these GPUs are borrowed.`),
      row.guarantee.map((each) => line(each, "Guarantee")), row.limits.map((each) => line(each, "Limit")),
      row.guarantee.length + row.limits.length ? null : el("p", { class: "empty" }, "No guarantee and no limit is configured."));
  }

  table() {
    return membersTable(this.members);
  }
}

customElements.define("weft-queues", WeftQueues);
customElements.define("weft-queue", WeftQueue);
