// The picture in the browser: tables by key, indexes over them, and the stream that keeps them true.

const TABLES = ["nodes", "gpus", "pods", "waiting", "events"];
export const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99"];
const OTHER = "#999999";

/** Tells "change" when the picture did, "connection" when the stream came or went. */
export class Model extends EventTarget {
  at = 0;
  lost = ""; // why the server has nothing newer, and since how many seconds
  lostFor = 0;
  about = { kind: "", about: "", lives: false, version: "" };
  connected = false;
  ready = false;

  constructor() {
    super();
    for (const table of TABLES) this[table] = new Map();
  }

  async follow() {
    this.about = await (await fetch("/api/about")).json();
    const stream = new EventSource("/api/picture");
    stream.addEventListener("picture", (event) => this.take(JSON.parse(event.data)));
    stream.addEventListener("delta", (event) => this.apply(JSON.parse(event.data)));
    stream.onopen = () => this.#connection(true);
    stream.onerror = () => this.#connection(false);
  }

  #connection(connected) {
    this.connected = connected;
    this.dispatchEvent(new Event("connection"));
  }

  /** A whole picture. */
  take(picture) {
    for (const table of TABLES) this[table] = new Map(Object.entries(picture[table] ?? {}));
    this.#changed(picture);
  }

  /** What leads to the next picture. */
  apply(delta) {
    for (const table of TABLES) {
      for (const key of delta[table]?.gone ?? []) this[table].delete(key);
      for (const [key, row] of Object.entries(delta[table]?.put ?? {})) this[table].set(key, row);
    }
    this.#changed(delta);
  }

  #changed({ at_s, lost, lost_s }) {
    this.at = at_s;
    this.lost = lost ?? "";
    this.lostFor = lost_s ?? 0;
    this.ready = true;
    this.#index();
    this.dispatchEvent(new Event("change"));
  }

  #index() {
    this.gpusOf = group(this.gpus.values(), (gpu) => gpu.node);
    for (const list of this.gpusOf.values()) list.sort((a, b) => (a.index ?? 0) - (b.index ?? 0));
    this.holders = new Map(); // by GPU: [{ pod, mib, milli }]
    this.podsOn = group(this.pods.values(), (pod) => pod.node);
    this.byName = new Map();
    for (const pod of this.pods.values()) {
      this.byName.set(`${pod.namespace}/${pod.name}`, pod);
      for (const [gpu, mib, milli] of pod.shares ?? []) {
        const key = `${pod.node}/${gpu}`;
        if (!this.holders.has(key)) this.holders.set(key, []);
        this.holders.get(key).push({ pod, mib, milli });
      }
    }
    this.waitingByName = new Map([...this.waiting.values()].map((pod) => [`${pod.namespace}/${pod.name}`, pod]));
    this.#colours();
  }

  /** The namespaces with most pods have colours; they keep them while they are among these. */
  #colours() {
    const counts = new Map();
    for (const pod of this.pods.values()) counts.set(pod.namespace, (counts.get(pod.namespace) ?? 0) + 1);
    const first = [...counts].sort((a, b) => b[1] - a[1]).slice(0, COLOURS.length).map(([name]) => name);
    const kept = new Map([...(this.namespaces ?? [])].filter(([name]) => first.includes(name)));
    const free = COLOURS.filter((colour) => ![...kept.values()].includes(colour));
    for (const name of first.sort()) if (!kept.has(name)) kept.set(name, free.shift());
    this.namespaces = kept;
  }

  colour(namespace) {
    return this.namespaces.get(namespace) ?? OTHER;
  }
}

export function group(rows, key) {
  const groups = new Map();
  for (const row of rows) {
    const name = key(row);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return groups;
}

/** GPUs that can hold pods: cards that are cut into instances are left out, their instances count. */
export const countable = (gpu) => !gpu.cut;

const collator = new Intl.Collator("en", { numeric: true });
export const byName = (a, b) => collator.compare(a, b);
