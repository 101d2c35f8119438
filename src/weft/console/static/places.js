// The pages of one pod, one GPU and one node.

import { chart } from "./chart.js";
import { bar, clock, cores, duration, el, fill, gpuLink, memory, nodeLink, number, path, podLink, podName, queueLink } from "./dom.js";
import { waitingTable } from "./lists.js";
import { ask, countable } from "./model.js";
import { SHADES, gpuTable } from "./shades.js";

const facts = (...pairs) =>
  el("dl", {}, pairs.filter(([, value]) => value || value === 0).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

/** A card with who holds what of it, as two bars and a table. */
function card(model, gpu, own, histories) {
  const index = gpu.index ?? 0;
  const holders = model.holders.get(`${gpu.node}/${index}`) ?? [];
  const parts = (of, whole) => holders.map((held) => ({
    part: held[of] / (whole || 1),
    colour: own && held.pod.uid !== own.uid ? "var(--beside)" : model.colour(held.pod.namespace),
    title: podName(held.pod),
  }));
  const row = (name, of, promised, whole, words) =>
    el("div", { class: "measure" }, el("span", {}, name), bar(parts(of, whole), `${name}: ${words(promised)} of ${words(whole)} promised`),
      el("span", { class: "n" }, `${words(promised)} of ${words(whole)}`));
  return el("section", { class: "card", "data-key": `${gpu.node}/${index}` },
    el("h2", {}, gpuLink(gpu.node, index), gpu.model ? el("small", {}, gpu.model) : null,
      gpu.broken ? el("em", {}, "out of service") : null, gpu.cut ? el("em", {}, "partitioned") : null,
      gpu.parent != null ? el("small", {}, `instance of GPU ${gpu.parent}`) : null),
    row("Cores", "milli", gpu.promised_milli ?? 0, gpu.milli ?? 0, cores),
    row("Memory", "mib", gpu.promised_mib ?? 0, gpu.memory_mib ?? 0, memory),
    used(gpu),
    histories?.charts(model, gpu),
    holders.length ? held(model, holders, own) : el("p", { class: "empty" }, "No pod holds a share."));
}

/** What is measured of it, where anybody measures. */
function used(gpu) {
  if (gpu.used_mib == null && gpu.used_percent == null) return null;
  const line = (name, part, words) => el("div", { class: "measure" }, el("span", {}, name),
    bar([{ part, colour: "var(--warn)", title: words }], `${name}: ${words}`), el("span", { class: "n" }, words));
  return [gpu.used_mib == null ? null : line("Used", gpu.used_mib / (gpu.memory_mib || 1), `${memory(gpu.used_mib)} of ${memory(gpu.memory_mib ?? 0)}`),
    gpu.used_percent == null ? null : line("Busy", gpu.used_percent / 100, `${gpu.used_percent} % of the time`)];
}

/** Columns of what is idle of a share, and what it has borrowed. */
const lending = [["Idle", "idle"], ["Borrows", "borrowed"]];

function held(model, holders, own) {
  const isolated = holders.some(({ pod }) => pod.isolation);
  const lends = lending.filter(([, of]) => holders.some((held) => held[of]));
  return el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Pod", "Cores", "Memory", ...lends.map(([name]) => name), "For", isolated && "Isolation"].filter(Boolean).map((text) => el("th", {}, text)))),
    el("tbody", {}, holders.map(({ pod, mib, milli, ...held }) => el("tr", { "data-key": pod.uid, class: own?.uid === pod.uid ? "own" : null },
      el("td", {}, pod.claim ? `claim ${podName(pod)}` : podLink(pod)), el("td", { class: "n" }, cores(milli)), el("td", { class: "n" }, memory(mib)),
      lends.map(([, of]) => el("td", { class: "n" }, held[of] ? memory(held[of]) : "–")),
      el("td", { class: "n" }, pod.since_s ? duration(model.at - pod.since_s) : ""), isolated && el("td", {}, pod.isolation ?? ""))))));
}

/** Who holds what of these GPUs, for CSV. */
const heldTable = (model, gpus) => [["node", "gpu", "namespace", "pod", "milli", "mib", "idle_mib", "borrowed_mib", "held_s", "isolation"],
  gpus.flatMap((gpu) => (model.holders.get(`${gpu.node}/${gpu.index ?? 0}`) ?? []).map(({ pod, mib, milli, idle, borrowed }) =>
    [gpu.node, gpu.index ?? 0, pod.namespace, pod.name, milli, mib, idle ?? 0, borrowed ?? 0, pod.since_s ? Math.round(model.at - pod.since_s) : "", pod.isolation]))];

const measure = (key, name, part, colour, words) => el("div", { class: "measure", "data-key": key }, el("span", {}, name),
  bar([{ part, colour, title: words }], `${typeof name === "string" ? name : key}: ${words}`), el("span", { class: "n" }, words));

/** The best nodes, each with the scores of its profile's policies as bars. */
function candidates({ candidates: best = [], rescored } = {}) {
  if (!best.length) return null;
  const scores = (each) => (Object.keys(each.scores ?? {}).length ? each.scores : { score: each.score });
  const most = {};
  for (const each of best) for (const [policy, score] of Object.entries(scores(each))) most[policy] = Math.max(most[policy] ?? 1e-9, Math.abs(score));
  return el("section", { class: "card", "data-key": "candidates" }, el("h2", {}, "Best nodes", rescored ? el("small", {}, "as of now, its own shares counted as free") : null),
    best.map((each) => [el("h3", {}, nodeLink(each.node), el("small", {}, `score ${number(each.score)}`)),
      Object.entries(scores(each)).map(([policy, score]) => measure(`${each.node} ${policy}`, policy, Math.abs(score) / most[policy], score < 0 ? "var(--warn)" : "var(--ramp-3)", number(score)))]));
}

/** What the score of the pod's place is made of. */
function scoreParts({ parts = [] } = {}) {
  const read = parts.map((line) => /^([+-][\d.]+): (.*)$/s.exec(line)).filter(Boolean).map(([, points, words]) => [Number(points), words]);
  if (!read.length) return null;
  const most = Math.max(...read.map(([points]) => Math.abs(points)), 1e-9);
  return el("section", { class: "card", "data-key": "parts" }, el("h2", {}, "Parts of its score"),
    read.map(([points, words]) => el("div", { class: "part" }, el("p", {}, words),
      measure(words, "", Math.abs(points) / most, points < 0 ? "var(--warn)" : "var(--ramp-3)", `${points > 0 ? "+" : ""}${number(points, 1)}`))));
}

/** What was predicted of the pod and those beside it, and what their progress shows. */
function slowdowns(model, { predicted = [], progress, residents = [] } = {}) {
  const observed = progress?.slowdown ? progress : null;
  if (!predicted.length && !observed && !residents.length) return null;
  const times = (value) => (value == null ? "–" : `${value.toFixed(2)} ×`);
  const left = predicted.slice(1); // the pod itself is the first
  const row = (name, own, each, seen) => el("tr", {}, el("td", {}, name, own ? el("small", {}, "this pod") : null),
    el("td", { class: "n" }, times(each?.slowdown)), el("td", { class: "n" }, times(each?.upper)), el("td", { class: "n" }, times(seen?.slowdown)));
  const beside = residents.map((each) => {
    const pod = model.placed(`${each.namespace}/${each.name}`);
    const at = pod?.application ? left.findIndex(({ application }) => application === pod.application) : -1;
    return row([podLink(pod ?? each), pod?.application ? el("small", {}, pod.application) : null], false, at < 0 ? null : left.splice(at, 1)[0], each);
  });
  return el("section", { class: "card wide", "data-key": "slowdown" }, el("h2", {}, "Slowdown"), el("table", {},
    el("thead", {}, el("tr", {}, ["Application", "Predicted", "90 % bound", "Observed"].map((text) => el("th", {}, text)))),
    el("tbody", {}, row(predicted[0]?.application ?? "", true, predicted[0], observed), beside, left.map((each) => row(each.application, false, each)))));
}

/** What happened lately to a pod, or on a node. */
function eventsOf(model, concerns) {
  const found = [...model.events.values()].filter(concerns).sort((a, b) => b.number - a.number).slice(0, 50);
  if (!found.length) return null;
  return el("section", { class: "card wide", "data-key": "events" }, el("h2", {}, "Events"), el("table", { class: "events" },
    el("thead", {}, el("tr", {}, ["Time", "Event", "Pod or node", "Details"].map((text) => el("th", {}, text)))),
    el("tbody", {}, found.map((event) => el("tr", { "data-key": event.number }, el("td", { class: "n" }, clock(event.at_s)),
      el("td", {}, event.kind), el("td", {}, event.pod || event.node), el("td", {}, event.text))))));
}

/** What was promised and used of GPUs over time: asked for each GPU again when it may have changed. */
class Histories {
  #known = new Map();

  constructor(shown) {
    this.shown = shown;
  }

  charts(model, gpu) {
    const key = `${gpu.node}/${gpu.index ?? 0}`;
    const state = JSON.stringify([gpu.promised_milli, gpu.promised_mib, gpu.used_mib, gpu.used_percent]);
    const known = this.#known.get(key);
    if (known?.state !== state) this.#ask(key, state);
    if (!known?.points?.length) return null;
    const last = Math.max(model.at, known.points.at(-1)[0]);
    const line = (column, whole, name) => {
      const points = known.points.filter((point) => point[column] != null).map((point) => [point[0], (100 * point[column]) / (whole || 1)]);
      return points.length ? [{ name, points: [...points, [last, points.at(-1)[1]]], words: (part) => `${part.toFixed(0)} %` }] : [];
    };
    const record = model.about.kind === "decisions";
    const shape = { most: 100, now: record ? model.at : null, began: record ? model.about.moments[0] : undefined };
    return [chart("Memory over time", [...line(2, gpu.memory_mib, "promised"), ...line(3, gpu.memory_mib, "used")], shape),
      chart("Cores over time", [...line(1, gpu.milli, "promised"), ...line(4, 100, "used (time busy)")], shape)];
  }

  async #ask(key, state) {
    this.#known.set(key, { ...this.#known.get(key), state });
    const answer = await ask(`/api/history?${new URLSearchParams({ gpu: key })}`);
    if (!answer.ok || !this.shown.isConnected) return;
    this.#known.set(key, { state, points: await answer.json() });
    this.shown.dispatchEvent(new CustomEvent("weft-go", { bubbles: true, detail: { address: location.href, replace: true } }));
  }
}

class WeftPod extends HTMLElement {
  show(model, [namespace, name]) {
    const id = `${namespace}/${name}`;
    const place = model.placed(id), waiting = model.waitingByName.get(id);
    const pod = place?.kept ? undefined : place;
    const gpus = (pod?.shares ?? []).map(([gpu]) => model.gpus.get(`${pod.node}/${gpu}`)).filter(Boolean);
    this.table = () => (waiting && !pod ? waitingTable(model, [waiting]) : heldTable(model, gpus));
    this.#ask(namespace, name, pod ?? waiting);
    fill(this, el("h1", {}, el("small", {}, "Pod"), id),
      pod ? this.#placed(model, pod) : waiting ? this.#waits(model, waiting, place) : el("p", { class: "empty" }, "There is no such pod now."),
      this.lines ? el("section", { class: "card", "data-key": "why" }, el("h2", {}, "Decision"), el("pre", {}, this.lines.join("\n"))) : null,
      el("div", { class: "cards" }, candidates(this.said), scoreParts(this.said), slowdowns(model, this.said), eventsOf(model, (event) => event.pod === id)),
      pod ? el("div", { class: "cards" }, gpus.map((gpu) => card(model, gpu, pod, this.histories))) : null);
  }

  histories = new Histories(this);

  #placed(model, pod) {
    return facts(["Place", el("span", {}, nodeLink(pod.node), (pod.shares ?? []).map(([gpu]) => [", ", gpuLink(pod.node, gpu)]))],
      ["Namespace", el("a", { href: path("namespace", pod.namespace) }, pod.namespace)], ["Queue", queueLink(pod.queue)], ["State", pod.binding ? "is being bound" : "bound"], ["For", pod.since_s ? duration(model.at - pod.since_s) : ""],
      ["Application", pod.application], ["Group", pod.gang], ["Dialect", pod.dialect], ["Isolation", pod.isolation],
      ["Priority", pod.priority], ["CPU", pod.cpu_milli ? `${pod.cpu_milli / 1000} ${pod.cpu_milli === 1000 ? "core" : "cores"}` : ""], ["Host memory", pod.memory_mib ? memory(pod.memory_mib) : ""]);
  }

  #waits(model, pod, kept) {
    return facts(["State", "waits"], ["Place reserved on", kept ? nodeLink(kept.node) : ""], ["For", pod.since_s ? duration(model.at - pod.since_s) : ""], ["Asks", pod.asks], ["Why", pod.reason],
      ["Smallest change", pod.change], ["Change that ends a pod", pod.ends], ["Queue", queueLink(pod.queue)], ["Group", pod.gang], ["Dialect", pod.dialect], ["Priority", pod.priority]);
  }

  /** Ask for the decision, once for each state that the pod is in. */
  async #ask(namespace, name, row) {
    const question = JSON.stringify([namespace, name, row?.node, row?.reason, row?.binding]);
    if (question === this.question) return;
    this.question = question;
    const answer = await ask(`/api/explain?${new URLSearchParams({ namespace, name })}`);
    if (this.question !== question || !this.isConnected) return;
    const said = await answer.json();
    this.said = answer.ok ? said : {};
    this.lines = answer.ok ? said.lines : [said.error];
    this.dispatchEvent(new CustomEvent("weft-go", { bubbles: true, detail: { address: location.href, replace: true } }));
  }
}

/** Facts about promised memory that pods do not need, and what of that other pods have. */
const idle = (idleMib, lentMib) => [["Promised and idle", memory(idleMib ?? 0)], ["Lent", memory(lentMib ?? 0)]];

class WeftGpu extends HTMLElement {
  histories = new Histories(this);

  show(model, [name, index]) {
    const gpu = model.gpus.get(`${name}/${index}`);
    const node = model.nodes.get(name);
    this.table = () => heldTable(model, gpu ? [gpu] : []);
    fill(this, el("h1", {}, el("small", {}, "GPU"), `${index} of ${name}`), gpu ? [
      facts(["Node", nodeLink(name)], ["Model", gpu.model], ["UUID", gpu.uuid], ["Memory", memory(gpu.memory_mib ?? 0)],
        ["Free", `${cores(gpu.free_milli ?? 0)} of cores, ${memory(gpu.free_mib ?? 0)}`],
        ["Stranded", `${SHADES.stranded.words(gpu, node)}, in proportion to its node's`], ...idle(gpu.idle_mib, gpu.lent_mib), ["Pods", number(gpu.pods ?? 0)],
        ["Temperature", gpu.celsius == null ? "not measured" : `${gpu.celsius} °C`],
        ["State", gpu.broken ? "out of service" : gpu.cut ? "partitioned" : node?.closed ? "its node takes no pods" : "in service"]),
      card(model, gpu, null, this.histories)] : el("p", { class: "empty" }, "There is no such GPU now."));
  }
}

class WeftNode extends HTMLElement {
  show(model, [name]) {
    const node = model.nodes.get(name);
    const gpus = model.gpusOf.get(name) ?? [];
    const sum = (column) => gpus.filter(countable).reduce((all, gpu) => all + (gpu[column] ?? 0), 0);
    const inGpus = (milli) => number((milli ?? 0) / 1000, 2);
    this.table = () => gpuTable(model, gpus);
    const beside = (model.podsOn.get(name) ?? []).filter((pod) => !pod.shares?.length);
    fill(this, el("h1", {}, el("small", {}, "Node"), name), node ? [
      facts(["State", node.closed ? "takes no pods" : "takes pods"], ["Zone", node.zone], ["Taints", (node.taints ?? []).join(", ")],
        ["CPU free", `${number((node.cpu_free_milli ?? 0) / 1000)} of ${number((node.cpu_milli ?? 0) / 1000)} cores`],
        ["Host memory free", `${memory(node.memory_free_mib ?? 0)} of ${memory(node.memory_mib ?? 0)}`],
        ["GPUs free", `${inGpus(sum("free_milli"))} of ${inGpus(sum("milli"))}, ${memory(sum("free_mib"))}`],
        ["Stranded", `${inGpus(node.stranded_milli)} of ${inGpus(node.idle_milli)} free GPUs`],
        ...idle(sum("idle_mib"), sum("lent_mib")), ["Pods", number((model.podsOn.get(name) ?? []).length)]),
      el("div", { class: "cards" }, gpus.map((gpu) => card(model, gpu))),
      eventsOf(model, (event) => event.node === name),
      beside.length ? el("p", {}, "Pods without a GPU: ", beside.map((pod, n) => [n ? ", " : "", podLink(pod)])) : null,
    ] : el("p", { class: "empty" }, "There is no such node now."));
  }
}

customElements.define("weft-pod", WeftPod);
customElements.define("weft-gpu", WeftGpu);
customElements.define("weft-node", WeftNode);
