// The picture in the browser: tables by key, indexes over them, and the stream that keeps them true.

const TABLES = ["nodes", "gpus", "pods", "waiting", "events", "queues"];
export const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99"];
const OTHER = "#999999";

const TOKEN = "weft-token";
const SILENT_MS = 35_000; // the server says something every 10 s

/** Ask the console, with the viewer's token where there is one: it is kept until the tab is closed. */
export function ask(address, more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return fetch(address, { ...more, headers: token ? { Authorization: `Bearer ${token}` } : {} });
}

/** Server-sent events, as [kind, data]; ends with the stream, or when it is silent for too long. */
async function* events(address) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENT_MS);
  const answer = await ask(address, { signal: stop.signal });
  if (!answer.ok) throw new Error((await answer.json()).error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = [], kind = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENT_MS);
      const lines = value.split("\n");
      rest.push(lines[0]);
      for (const next of lines.slice(1)) {
        const line = rest.join("");
        rest = [next];
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) yield [kind, line.slice(6)];
      }
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

/** Tells "change" when the picture did, "connection" when the stream came or went, "refused"
 * when the console wants a token. */
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

  /** Keep the picture true, for ever; a console that asks for a token waits for one. */
  async follow() {
    for (let failures = 0; ; ) {
      try {
        const about = await ask("/api/about");
        if (about.status === 401 || about.status === 403) {
          this.#refused((await about.json()).error);
          await this.signedIn();
          continue;
        }
        if (!about.ok) throw new Error((await about.json()).error);
        this.about = await about.json();
        for await (const [kind, data] of events("/api/picture")) {
          failures = 0;
          this.connected = true;
          if (kind === "picture") this.take(JSON.parse(data));
          else if (kind === "delta") this.apply(JSON.parse(data));
          else if (kind === "refused") this.#refused(JSON.parse(data).error);
        }
      } catch (failure) {
        console.debug("weft:", failure);
      }
      this.#connection(false);
      await new Promise((over) => setTimeout(over, Math.min(10_000, 500 * 2 ** failures++)));
    }
  }

  #refused(why) {
    this.#connection(false);
    this.dispatchEvent(new CustomEvent("refused", { detail: why }));
  }

  /** Returns once somebody has given a token. */
  signedIn() {
    return new Promise((done) => this.addEventListener("signed-in", done, { once: true }));
  }

  signIn(token) {
    sessionStorage.setItem(TOKEN, token);
    this.dispatchEvent(new Event("signed-in"));
  }

  #connection(connected) {
    this.connected = connected;
    this.dispatchEvent(new Event("connection"));
  }

  /** Nothing is known, as at first. */
  forget() {
    this.ready = false;
    for (const table of TABLES) this[table] = new Map();
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

  #changed({ at_s, lost, lost_s, queue_order }) {
    this.queueOrder = queue_order ?? "";
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
      if (pod.name) this.byName.set(`${pod.namespace}/${pod.name}`, pod);
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
    for (const pod of this.pods.values())
      if (pod.namespace) counts.set(pod.namespace, (counts.get(pod.namespace) ?? 0) + 1);
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
