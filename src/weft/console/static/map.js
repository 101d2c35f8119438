// The map: every GPU a cell, its node a block, on one canvas that draws only what is on the screen.

import { cores, duration, el, fill, gpuLink, memory, nodeLink, number, path, podLink, podName, stackedTable } from "./dom.js";
import { byName, countable, group } from "./model.js";
import { SHADES, columnOf, gpuTable, shadeOf } from "./shades.js";

const GROUPS = { model: "GPU model", zone: "zone", node: "node" };
const FILTERS = ["namespace", "model", "dialect"];
const LABELS = { group: "Group by", shade: "Colour by", namespace: "Namespace", model: "GPU model", dialect: "Dialect" };
const SIZES = [8, 11, 15, 20, 26, 34, 46];
const PAGE = 200;
let maps = 0; // so that each has its own id
const EDGE = 4; // room for what is drawn around the outermost cells

class WeftMap extends HTMLElement {
  #boxes = []; // { key, node, x, y, w, h }: cells where they are drawn, by their GPU's key
  #rows = 0;

  connectedCallback() {
    const texts = Object.fromEntries(Object.entries(SHADES).map(([name, { text }]) => [name, text]));
    const choice = (name, options) =>
      el("label", {}, LABELS[name],
        el("select", { name }, Object.entries(options).map(([value, text]) => el("option", { value }, text))));
    this.form = el("form", { class: "tools" }, choice("group", GROUPS), choice("shade", texts),
      FILTERS.map((name) => choice(name, { "": "any" })),
      el("label", {}, "Pod", el("input", { name: "pod", type: "search", placeholder: "part of a name", autocomplete: "off" })),
      el("span", { class: "zoom" }, el("button", { type: "button", "aria-label": "Smaller cells", onclick: () => this.#zoom(-1) }, "−"),
        el("button", { type: "button", "aria-label": "Larger cells", onclick: () => this.#zoom(1) }, "+")));
    const tip = `cell-${maps++}`;
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-describedby": tip });
    this.stage = el("div", { class: "stage" }, this.canvas);
    this.tip = el("div", { class: "tip", role: "status", id: tip, hidden: true });
    this.key = el("div", { class: "key" });
    this.rows = el("details", { class: "as-table" }, el("summary", {}, "The map as a table"), el("div"));
    this.append(el("h1", { class: "unseen" }, "Map"), this.form, this.key, this.stage, this.tip, this.rows);
    this.form.oninput = () => this.#ask();
    this.form.onsubmit = (event) => event.preventDefault();
    this.rows.ontoggle = () => this.#list();
    this.canvas.onpointermove = (event) => this.#hover(this.#at(event));
    this.canvas.onpointerleave = () => this.#hover(null);
    this.canvas.onclick = (event) => this.#open(this.#at(event));
    this.canvas.onkeydown = (event) => this.#key(event);
    this.canvas.onblur = () => this.#hover(null);
    this.later = () => requestAnimationFrame(() => this.#draw());
    addEventListener("scroll", this.later, { passive: true });
    this.watch = new ResizeObserver(() => this.model && (this.#layOut(), this.#draw()));
    this.watch.observe(this.stage);
  }

  /** Without a form, addresses and a table of its own: what is around it has these. */
  get bare() {
    return this.classList.contains("bare");
  }

  disconnectedCallback() {
    removeEventListener("scroll", this.later);
    this.watch.disconnect();
  }

  show(model, parts, query) {
    this.model = model;
    this.query = query;
    this.shade = shadeOf(query.get("shade"));
    for (const name of FILTERS) this.#options(name);
    this.#groupings();
    for (const field of this.form.elements)
      if (field.name && field !== document.activeElement) field.value = query.get(field.name) ?? (field.options?.[0].value ?? "");
    this.#layOut();
    this.#draw();
    this.#list();
  }

  #options(name) {
    const found = [...this.model.values[name].keys()].sort(byName);
    const wanted = ["", this.query.get(name) ?? "", ...found].filter((value, at, all) => all.indexOf(value) === at);
    const select = this.form.elements[name];
    if ([...select.options].map((option) => option.value).join("\n") !== wanted.join("\n"))
      fill(select, wanted.map((value) => el("option", { value }, value || "any")));
  }

  /** What nodes can be grouped by: also labels of a few values. */
  #groupings() {
    if (this.labelsOf === this.model.places) return;
    this.labelsOf = this.model.places;
    const labels = new Set([...this.model.nodes.values()].flatMap((node) => Object.keys(node.labels ?? {})));
    const wanted = { ...GROUPS, ...Object.fromEntries([...labels].sort(byName).map((key) => [`label:${key}`, `label ${key}`])) };
    fill(this.form.elements.group, Object.entries(wanted).map(([value, text]) => el("option", { value }, text)));
  }

  /** Put what the form says into the address: it can be linked. */
  #ask(extra = {}) {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of [...new FormData(this.form), ...Object.entries(extra)])
      if (value && value !== "model" && !(name === "shade" && value === "cores")) query.set(name, value);
      else query.delete(name);
    const address = `/map${query.size ? `?${query}` : ""}`;
    this.dispatchEvent(new CustomEvent("weft-go", { bubbles: true, detail: { address, replace: true } }));
  }

  #zoom(by) {
    const at = SIZES.indexOf(this.size) + by;
    this.#ask({ cell: String(SIZES[Math.max(0, Math.min(SIZES.length - 1, at))]) });
  }

  // --- where everything is ---

  #layOut() {
    const width = this.stage.clientWidth;
    const groups = this.#grouped();
    const laid = [width, innerHeight, this.query.get("cell")].join(" ");
    if (groups === this.groups && laid === this.laid) return; // rows may be others, places are not
    this.groups = groups;
    this.laid = laid;
    this.size = +this.query.get("cell") || this.#fitting(width);
    this.height = this.#place(width);
    this.stage.style.height = `${this.height}px`;
  }

  /** The groups of nodes in their order, each node with its cells' keys: the same ones while they are alike. */
  #grouped() {
    const { model } = this;
    const by = this.query.get("group") ?? "model";
    const asked = [model.places, by].join(" ");
    if (this.groups && this.groupsOf === model && this.grouped === asked) return this.groups;
    this.groupsOf = model;
    this.grouped = asked;
    const nodes = [...model.nodes.values()].filter((node) => model.gpusOf.has(node.name));
    nodes.sort((a, b) => byName(a.name, b.name));
    const label = by.startsWith("label:") ? by.slice(6) : "";
    const value = (node) => (label ? node.labels?.[label] && `${label}=${node.labels[label]}` : node[by]);
    const title = (node) => (by === "node" ? "" : value(node) || `no ${label || GROUPS[by] || by}`);
    const keys = (node) => model.gpusOf.get(node.name).filter(countable).map((gpu) => `${gpu.node}/${gpu.index ?? 0}`);
    const groups = [...group(nodes, title)].sort(([a], [b]) => byName(a, b));
    return groups.map(([text, members]) => [text, members.map((node) => ({ name: node.name, keys: keys(node) }))]);
  }

  /** The largest cells with which the map is at most a screen and a tenth high. */
  #fitting(width) {
    const fits = (size) => ((this.size = size), this.#place(width, true) < innerHeight * 1.1);
    return SIZES.findLast(fits) ?? SIZES[0];
  }

  /** Give everything its place, and return how high that is; or just try that. */
  #place(width, tries = false) {
    const { size } = this;
    const gap = size > 12 ? 2 : 1, between = size > 12 ? 12 : 6, name = size >= 15 ? 15 : 0;
    this.#boxes = [];
    this.blocks = [];
    this.titles = [];
    let x = EDGE, y = 0;
    for (const [text, nodes] of this.groups) {
      if (text) {
        this.titles.push({ text, nodes, y: y + 16 });
        y += 26;
      }
      x = EDGE;
      let line = 0;
      for (const node of nodes) {
        const columns = Math.max(1, Math.min(node.keys.length, 8));
        const w = Math.max(columns * (size + gap) - gap, name ? 44 : 0);
        if (x > EDGE && x + w > width - EDGE) {
          x = EDGE;
          y += line + between;
          line = 0;
        }
        const h = name + Math.ceil(node.keys.length / columns) * (size + gap) - gap;
        if (!tries) {
          this.blocks.push({ node: node.name, x, y, w, h, named: name > 0 });
          node.keys.forEach((key, at) =>
            this.#boxes.push({
              key, node: node.name, w: size, h: size,
              x: x + (at % columns) * (size + gap),
              y: y + name + Math.floor(at / columns) * (size + gap),
            }));
        }
        line = Math.max(line, h);
        x += w + between;
      }
      y += line + between + 8;
    }
    return y + 4;
  }

  // --- drawing ---

  #draw() {
    if (!this.model || !this.isConnected) return;
    const { canvas, stage, size } = this;
    const style = getComputedStyle(this);
    const ink = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = { text: ink("text"), faint: ink("faint"), track: ink("track"), line: ink("line"), accent: ink("accent"), bad: ink("bad"), ramp: [0, 1, 2, 3, 4].map((n) => ink(`ramp-${n}`)) };
    const top = Math.max(0, -stage.getBoundingClientRect().top);
    const height = Math.min(innerHeight, this.height - top);
    const width = stage.clientWidth, scale = devicePixelRatio || 1;
    canvas.style.top = `${top}px`;
    canvas.style.height = `${Math.max(0, height)}px`;
    canvas.width = width * scale;
    canvas.height = Math.max(1, height * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, -top * scale);
    this.matches = this.#matching();
    this.#legend(colours);
    const seen = (box) => box.y + box.h >= top && box.y <= top + height;
    pen.font = `600 13px ${style.fontFamily}`;
    for (const { text, nodes, y } of this.titles) {
      pen.fillStyle = colours.text;
      pen.fillText(text, EDGE, y);
      pen.fillStyle = colours.faint;
      pen.fillText(`${nodes.length} nodes`, pen.measureText(text).width + EDGE + 10, y);
    }
    pen.font = `11px ${style.fontFamily}`;
    for (const block of this.blocks.filter(seen)) {
      const closed = this.model.nodes.get(block.node).closed;
      if (block.named) {
        pen.fillStyle = closed ? colours.bad : colours.faint;
        pen.fillText(block.node, block.x, block.y + 9, block.w);
      }
      if (closed) {
        pen.strokeStyle = colours.bad;
        pen.setLineDash([3, 2]);
        pen.strokeRect(block.x - 2.5, block.y - 2.5 + (block.named ? 14 : 0), block.w + 5, block.h + 5 - (block.named ? 14 : 0));
        pen.setLineDash([]);
      }
    }
    for (const box of this.#boxes) if (seen(box)) this.#cell(pen, box, colours, size);
    if (this.cursor) this.#outline(pen, this.#boxes.find((box) => box.key === this.cursor), colours.accent);
    canvas.setAttribute("aria-label", `Map of ${number(this.#boxes.length)} GPUs on ${number(this.blocks.length)} nodes. Arrow keys move between GPUs${this.bare ? "" : "; Enter opens one"}; the table below has the same data.`);
    this.dataset.drawn = this.#boxes.length;
  }

  #cell(pen, { key, node, x, y, w, h }, colours) {
    const gpu = this.model.gpus.get(key);
    pen.globalAlpha = this.matches && !this.matches(gpu) ? 0.18 : 1;
    pen.fillStyle = colours.track;
    pen.fillRect(x, y, w, h);
    const shade = this.shade;
    if (gpu.broken) {
      pen.strokeStyle = colours.bad;
      pen.beginPath();
      pen.moveTo(x + 2, y + 2);
      pen.lineTo(x + w - 2, y + h - 2);
      pen.moveTo(x + w - 2, y + 2);
      pen.lineTo(x + 2, y + h - 2);
      pen.stroke();
    } else if (!shade.part) {
      let from = y + h;
      for (const { pod, mib, milli } of this.#holders(gpu)) {
        const part = h * Math.min(1, Math.max(milli / (gpu.milli || 1), mib / (gpu.memory_mib || 1)));
        pen.fillStyle = this.model.colour(pod.namespace);
        pen.fillRect(x, Math.max(y, from - part), w, Math.min(part, from - y) - 0.5);
        from -= part;
      }
    } else {
      const part = shade.part(gpu, this.model.nodes.get(node));
      if (part === null) {
        pen.strokeStyle = colours.faint; // nobody measures it
        pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      } else if (part > 0) {
        pen.fillStyle = colours.ramp[Math.min(4, Math.ceil(part * 5 - 0.01) - 1)];
        const filled = shade.whole ? h : Math.max(2, h * Math.min(1, part));
        pen.fillRect(x, y + h - filled, w, filled);
      }
    }
    pen.globalAlpha = 1;
  }

  #outline(pen, box, colour) {
    if (!box) return;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.strokeRect(box.x - 2, box.y - 2, box.w + 4, box.h + 4);
    pen.lineWidth = 1;
  }

  #legend(colours) {
    const shade = this.query.get("shade") ?? "cores";
    const swatch = (colour, text) => {
      const box = el("i");
      box.style.background = colour;
      return el("span", {}, box, text);
    };
    const steps = { pods: ["1 pod", "2", "3", "4", "5 or more"], temperature: ["to 50 °C", "60 °C", "70 °C", "80 °C", "hotter"] }[shade]
      ?? ["to 20 %", "40 %", "60 %", "80 %", "100 %"];
    const parts = shade === "namespace"
      ? [...this.model.namespaces].map(([name, colour]) => swatch(colour, name))
      : steps.map((text, at) => swatch(colours.ramp[at], text));
    const none = ["cores", "memory"].includes(shade) ? "free" : "none";
    const unknown = ["used", "busy", "temperature"].includes(shade) ? el("span", { class: "unmeasured" }, el("i"), "not measured") : null;
    fill(this.key, shade === "temperature" ? null : swatch(colours.track, none), parts, unknown,
      el("span", { class: "closed" }, el("i"), "node takes no pods"), el("span", { class: "broken" }, el("i"), "out of service"));
  }

  // --- filters ---

  #holders(gpu) {
    return this.model.holders.get(`${gpu.node}/${gpu.index ?? 0}`) ?? [];
  }

  /** Whether a GPU is meant by the filters; null where there are none. */
  #matching() {
    const [namespace, model, dialect, pod] = [...FILTERS, "pod"].map((name) => this.query.get(name));
    if (!namespace && !model && !dialect && !pod) return null;
    const ofPod = (each) =>
      (!namespace || each.namespace === namespace) && (!dialect || each.dialect === dialect) &&
      (!pod || `${each.namespace}/${each.name}`.includes(pod));
    return (gpu) =>
      (!model || gpu.model === model) &&
      (!(namespace || dialect || pod) || this.#holders(gpu).some((held) => ofPod(held.pod)));
  }

  // --- pointer and keys ---

  #at(event) {
    const box = this.stage.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    return this.#boxes.find((b) => x >= b.x - 1 && x <= b.x + b.w + 1 && y >= b.y - 1 && y <= b.y + b.h + 1) ?? null;
  }

  #hover(box) {
    const before = this.cursor;
    this.cursor = box?.key ?? null;
    if (before !== this.cursor) this.#draw();
    this.tip.hidden = !box;
    this.canvas.style.cursor = box ? "pointer" : "";
    if (!box) return;
    const gpu = this.model.gpus.get(box.key);
    fill(this.tip, describe(this.model, gpu, this.#holders(gpu), this.shade));
    const stage = this.stage.getBoundingClientRect();
    const left = Math.min(stage.left + box.x + box.w + 10, innerWidth - this.tip.offsetWidth - 8);
    const below = stage.top + box.y + box.h + 10;
    const fits = below + this.tip.offsetHeight < innerHeight;
    this.tip.style.left = `${Math.max(8, left)}px`;
    this.tip.style.top = `${fits ? below : Math.max(8, stage.top + box.y - this.tip.offsetHeight - 10)}px`;
  }

  #open(box) {
    if (!box || this.bare) return;
    const gpu = this.model.gpus.get(box.key);
    const address = path("gpu", gpu.node, gpu.index ?? 0);
    this.dispatchEvent(new CustomEvent("weft-go", { bubbles: true, detail: { address } }));
  }

  #key(event) {
    const boxes = this.#boxes;
    const at = boxes.findIndex((box) => box.key === this.cursor);
    if (event.key === "Enter") return this.#open(boxes[at]);
    if (event.key === "Escape") return this.#hover(null);
    const next = {
      ArrowRight: () => at + 1, ArrowLeft: () => at - 1, Home: () => 0, End: () => boxes.length - 1,
      ArrowDown: () => this.#row(at, 1), ArrowUp: () => this.#row(at, -1),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    const box = boxes[at < 0 ? 0 : Math.max(0, Math.min(boxes.length - 1, next()))];
    const y = this.stage.getBoundingClientRect().top + box.y;
    if (y < 60 || y > innerHeight - 120) scrollBy(0, y - innerHeight / 2);
    this.#hover(box);
  }

  /** The nearest cell in the next line of cells, up or down. */
  #row(at, by) {
    const from = this.#boxes[at];
    const lines = this.#boxes.filter((box) => (box.y - from.y) * by > 0);
    if (!lines.length) return at;
    const y = by > 0 ? Math.min(...lines.map((box) => box.y)) : Math.max(...lines.map((box) => box.y));
    const line = lines.filter((box) => box.y === y);
    const best = line.reduce((a, b) => (Math.abs(b.x - from.x) < Math.abs(a.x - from.x) ? b : a));
    return this.#boxes.indexOf(best);
  }

  // --- the same as a table ---

  /** All GPUs that the filters leave, for CSV. */
  table() {
    return gpuTable(this.model, [...this.model.gpus.values()].filter((gpu) => !this.matches || this.matches(gpu)));
  }

  #list() {
    if (!this.rows.open || !this.model) return;
    const found = this.#boxes.map(({ key }) => this.model.gpus.get(key)).filter((gpu) => !this.matches || this.matches(gpu));
    const rows = found.slice(0, this.#rows || PAGE);
    const { model, shade } = this;
    const [head, ...more] = shade.listed ? [[]] : [[columnOf(shade)], (gpu) => shade.words(gpu, model.nodes.get(gpu.node))];
    fill(this.rows.lastElementChild,
      el("div", { class: "wide" }, stackedTable(["Node", "GPU", "Cores promised", "Memory promised", ...head, "Memory", "Memory used", "Model", "Pods"], 5 + head.length,
        rows.map((gpu) => [`${gpu.node}/${gpu.index ?? 0}`, nodeLink(gpu.node), gpuLink(gpu.node, gpu.index ?? 0), cores(gpu.promised_milli ?? 0),
          memory(gpu.promised_mib ?? 0), ...more.map((words) => words(gpu)), memory(gpu.memory_mib ?? 0), gpu.used_mib == null ? "–" : memory(gpu.used_mib), gpu.model ?? "",
          this.#holders(gpu).map(({ pod }, n) => [n ? ", " : "", podLink(pod)])]))),
      found.length > rows.length
        ? el("button", { type: "button", onclick: () => { this.#rows = rows.length + 10 * PAGE; this.#list(); } },
          `Show more: ${number(rows.length)} of ${number(found.length)} shown`)
        : null);
  }
}

function describe(model, gpu, holders, shade) {
  const node = model.nodes.get(gpu.node);
  return [
    el("strong", {}, `${gpu.node}, GPU ${gpu.index ?? 0}`),
    shade.listed ? null : el("strong", {}, `${columnOf(shade)}: ${shade.words(gpu, node)}`),
    el("span", {}, [gpu.model, gpu.broken && "out of service", node?.closed && "node takes no pods"].filter(Boolean).join(", ")),
    el("span", {}, `${cores(gpu.promised_milli ?? 0)} of cores, ${memory(gpu.promised_mib ?? 0)} of ${memory(gpu.memory_mib ?? 0)} promised`),
    el("span", {}, `${cores(gpu.free_milli ?? 0)} of cores, ${memory(gpu.free_mib ?? 0)} free`),
    node?.stranded_milli && shade !== SHADES.stranded ? el("span", {}, `${SHADES.stranded.words(gpu, node)} of the GPU stranded`) : null,
    gpu.used_mib == null ? null : el("span", {}, `${memory(gpu.used_mib)} used${gpu.used_percent == null ? "" : `, busy ${gpu.used_percent} % of the time`}`),
    gpu.celsius == null || shade === SHADES.temperature ? null : el("span", {}, `${gpu.celsius} °C`),
    gpu.lent_mib && shade !== SHADES.lent ? el("span", {}, `${memory(gpu.lent_mib)} lent`) : null,
    holders.length
      ? el("ul", {}, holders.slice(0, 8).map(({ pod, mib, milli }) =>
        el("li", {}, `${podName(pod)}: ${cores(milli)}, ${memory(mib)}${pod.since_s ? `, for ${duration(model.at - pod.since_s)}` : ""}${pod.isolation ? `, ${pod.isolation}` : ""}`)))
      : el("span", {}, "no pod"),
    holders.length > 8 ? el("span", {}, `and ${holders.length - 8} more`) : null,
  ];
}

customElements.define("weft-map", WeftMap);
