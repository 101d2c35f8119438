// The pages of one pod, one GPU and one node.

import { bar, cores, duration, el, fill, gpuLink, memory, nodeLink, number, path, podLink, podName, queueLink } from "./dom.js";
import { ask } from "./model.js";

const facts = (...pairs) =>
  el("dl", {}, pairs.filter(([, value]) => value || value === 0).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

/** A card with who holds what of it, as two bars and a table. */
function card(model, gpu, own) {
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
    holders.length ? held(model, holders, own) : el("p", { class: "empty" }, "No pod holds a share."));
}

function held(model, holders, own) {
  const isolated = holders.some(({ pod }) => pod.isolation);
  return el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Pod", "Cores", "Memory", "For", isolated && "Isolation"].filter(Boolean).map((text) => el("th", {}, text)))),
    el("tbody", {}, holders.map(({ pod, mib, milli }) => el("tr", { "data-key": pod.uid, class: own?.uid === pod.uid ? "own" : null },
      el("td", {}, pod.claim ? `claim ${podName(pod)}` : podLink(pod)), el("td", { class: "n" }, cores(milli)), el("td", { class: "n" }, memory(mib)),
      el("td", { class: "n" }, pod.since_s ? duration(model.at - pod.since_s) : ""), isolated && el("td", {}, pod.isolation ?? ""))))));
}

class WeftPod extends HTMLElement {
  show(model, [namespace, name]) {
    const id = `${namespace}/${name}`;
    const place = model.byName.get(id), waiting = model.waitingByName.get(id);
    const pod = place?.kept ? undefined : place;
    this.#ask(namespace, name, pod ?? waiting);
    fill(this, el("h1", {}, el("small", {}, "Pod"), id),
      pod ? this.#placed(model, pod) : waiting ? this.#waits(model, waiting, place) : el("p", { class: "empty" }, "There is no such pod now."),
      this.lines ? el("section", { class: "card", "data-key": "why" }, el("h2", {}, "Decision"), el("pre", {}, this.lines.join("\n"))) : null,
      pod ? el("div", { class: "cards" }, (pod.shares ?? []).map(([gpu]) => model.gpus.get(`${pod.node}/${gpu}`)).filter(Boolean).map((gpu) => card(model, gpu, pod))) : null);
  }

  #placed(model, pod) {
    return facts(["Place", el("span", {}, nodeLink(pod.node), (pod.shares ?? []).map(([gpu]) => [", ", gpuLink(pod.node, gpu)]))],
      ["Namespace", el("a", { href: path("namespace", pod.namespace) }, pod.namespace)], ["Queue", queueLink(pod.queue)], ["State", pod.binding ? "is being bound" : "bound"], ["For", pod.since_s ? duration(model.at - pod.since_s) : ""],
      ["Application", pod.application], ["Group", pod.gang], ["Dialect", pod.dialect], ["Isolation", pod.isolation],
      ["Priority", pod.priority], ["CPU", pod.cpu_milli ? `${pod.cpu_milli / 1000} cores` : ""], ["Host memory", pod.memory_mib ? memory(pod.memory_mib) : ""]);
  }

  #waits(model, pod, kept) {
    return facts(["State", "waits"], ["Kept for it", kept ? nodeLink(kept.node) : ""], ["For", pod.since_s ? duration(model.at - pod.since_s) : ""], ["Asks", pod.asks], ["Why", pod.reason],
      ["Smallest change", pod.change], ["Queue", queueLink(pod.queue)], ["Group", pod.gang], ["Dialect", pod.dialect], ["Priority", pod.priority]);
  }

  /** Ask for the decision, once for each state that the pod is in. */
  async #ask(namespace, name, row) {
    const question = JSON.stringify([namespace, name, row?.node, row?.reason, row?.binding]);
    if (question === this.question) return;
    this.question = question;
    const answer = await ask(`/api/explain?${new URLSearchParams({ namespace, name })}`);
    if (this.question !== question || !this.isConnected) return;
    const said = await answer.json();
    this.lines = answer.ok ? said.lines : [said.error];
    this.dispatchEvent(new CustomEvent("weft-go", { bubbles: true, detail: { address: location.href, replace: true } }));
  }
}

class WeftGpu extends HTMLElement {
  show(model, [name, index]) {
    const gpu = model.gpus.get(`${name}/${index}`);
    const node = model.nodes.get(name);
    fill(this, el("h1", {}, el("small", {}, "GPU"), `${index} of ${name}`), gpu ? [
      facts(["Node", nodeLink(name)], ["Model", gpu.model], ["UUID", gpu.uuid], ["Memory", memory(gpu.memory_mib ?? 0)],
        ["Free", `${cores(gpu.free_milli ?? 0)} of cores, ${memory(gpu.free_mib ?? 0)}`], ["Pods", number(gpu.pods ?? 0)],
        ["State", gpu.broken ? "out of service" : gpu.cut ? "partitioned" : node?.closed ? "its node takes no pods" : "in service"]),
      card(model, gpu)] : el("p", { class: "empty" }, "There is no such GPU now."));
  }
}

class WeftNode extends HTMLElement {
  show(model, [name]) {
    const node = model.nodes.get(name);
    const beside = (model.podsOn.get(name) ?? []).filter((pod) => !pod.shares?.length);
    fill(this, el("h1", {}, el("small", {}, "Node"), name), node ? [
      facts(["State", node.closed ? "takes no pods" : "takes pods"], ["Zone", node.zone], ["Taints", (node.taints ?? []).join(", ")],
        ["CPU free", `${number((node.cpu_free_milli ?? 0) / 1000)} of ${number((node.cpu_milli ?? 0) / 1000)} cores`],
        ["Host memory free", `${memory(node.memory_free_mib ?? 0)} of ${memory(node.memory_mib ?? 0)}`],
        ["Pods", number((model.podsOn.get(name) ?? []).length)]),
      el("div", { class: "cards" }, (model.gpusOf.get(name) ?? []).map((gpu) => card(model, gpu))),
      beside.length ? el("p", {}, "Pods without a GPU: ", beside.map((pod, n) => [n ? ", " : "", podLink(pod)])) : null,
    ] : el("p", { class: "empty" }, "There is no such node now."));
  }
}

customElements.define("weft-pod", WeftPod);
customElements.define("weft-gpu", WeftGpu);
customElements.define("weft-node", WeftNode);
