// The picture in the browser: tables by key, indexes over them, and the stream that keeps them true.

const TABLES = ["nodes", "gpus", "pods", "waiting", "events", "queues"];
export const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99"];
const OTHER = "#999999";

const TOKEN = "weft-token";
const SILENT_MS = 25_000; // the server says something every 10 s
const PATIENCE_MS = 10_000;
const MOST_STREAMS = 4; // browsers open six connections to a server, for all their pages together
const SLOW_MS = 5_000;

/** Ask the console, with the viewer's token where there is one: it is kept until the tab is closed. */
export function ask(address, more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return fetch(address, { ...more, headers: token ? { Authorization: `Bearer ${token}` } : {} });
}

/** Which of this browser's pages hold a stream: the four that were looked at last. A page that is
 * hidden holds none; one beyond the four asks for a picture every few seconds. */
class Streams {
  #channel = new BroadcastChannel("weft-streams");
  #own = `${Date.now()} ${Math.random()}`;
  #later = new Set(); // pages that began after this one
  #wake = () => {};
  stop = new AbortController();

  constructor() {
    this.#channel.onmessage = ({ data: { began, left } }) => {
      if (left) this.#later.delete(left);
      else if (this.#later.add(began).size >= MOST_STREAMS) this.stop.abort();
    };
    addEventListener("pagehide", () => this.#channel.postMessage({ left: this.#own }));
    addEventListener("focus", () => this.beyond && this.#begin());
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop.abort() : this.#begin()));
    this.#begin();
  }

  #begin() {
    this.#later.clear();
    this.#channel.postMessage({ began: this.#own });
    this.#wake();
  }

  get beyond() {
    return this.#later.size >= MOST_STREAMS;
  }

  /** Returns when the page may ask again, if it gave its stream away. */
  async turn() {
    if (document.hidden || (this.beyond && this.stop.signal.aborted)) {
      const wait = document.hidden ? 2 ** 31 - 1 : SLOW_MS;
      await new Promise((over) => {
        this.#wake = over;
        setTimeout(over, wait);
      });
    }
    this.stop = new AbortController();
  }
}

/** Note when something last happened, for measurements; the browser would keep every such note. */
export function mark(name) {
  performance.clearMarks(`weft-${name}`);
  performance.mark(`weft-${name}`);
}

/** Server-sent events, as [kind, data]; ends with the stream, or when it is silent for too long. */
async function* events(address, stop) {
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

  places = 0; // another number once nodes, GPUs, or what nodes are grouped by, are others
  waits = 0; // another number once pending pods are others

  constructor() {
    super();
    this.#clear();
  }

  /** Keep the picture true, for ever; a console that asks for a token waits for one. */
  async follow() {
    const streams = new Streams();
    for (let failures = 0; ; ) {
      await streams.turn();
      const { stop } = streams;
      try {
        const about = await ask("/api/about", { signal: AbortSignal.timeout(PATIENCE_MS) });
        if (about.status === 401 || about.status === 403) {
          this.#refused((await about.json()).error);
          await this.signedIn();
          continue;
        }
        if (!about.ok) throw new Error((await about.json()).error);
        const told = await about.json();
        const still = this.ready && told.moments.length && JSON.stringify(told) === JSON.stringify(this.about);
        if (!still) this.about = told;
        for await (const [kind, data] of events("/api/picture", stop)) {
          failures = 0;
          this.connected = true;
          mark("data");
          if (kind === "picture" && still) this.#connection(true); // of a record another moment may be shown
          else if (kind === "picture") this.take(JSON.parse(data));
          else if (kind === "delta") this.apply(JSON.parse(data));
          else if (kind === "refused") this.#refused(JSON.parse(data).error);
          if (streams.beyond) stop.abort();
        }
      } catch (failure) {
        if (stop.signal.aborted && this.connected && (document.hidden || streams.beyond)) continue; // given away
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
    this.#clear();
  }

  /** A whole picture. */
  take(picture) {
    this.#clear();
    for (const table of TABLES) {
      const rows = picture[table] ?? {};
      for (const key in rows) this.#put(table, key, rows[key]); // entries would be as many arrays
    }
    this.#changed(picture);
  }

  /** What leads to the next picture. */
  apply(delta) {
    for (const table of TABLES) {
      for (const key of delta[table]?.gone ?? []) this.#put(table, key, undefined);
      for (const [key, row] of Object.entries(delta[table]?.put ?? {})) this.#put(table, key, row);
    }
    this.#changed(delta);
  }

  #changed({ at_s, lost, lost_s, queue_order }) {
    this.queueOrder = queue_order ?? "";
    this.at = at_s;
    this.lost = lost ?? "";
    this.lostFor = lost_s ?? 0;
    this.ready = true;
    this.#colours();
    this.dispatchEvent(new Event("change"));
  }

  // --- indexes, kept row by row: a delta costs what changed ---

  #clear() {
    for (const table of TABLES) this[table] = new Map();
    this.gpusOf = new Map(); // by node, in their order
    this.podsOn = new Map(); // by node
    this.holders = new Map(); // by GPU: [{ pod, mib, milli }]
    this.named = new Map(); // pods with a place, by NAMESPACE/NAME
    this.waitingByName = new Map();
    this.values = { namespace: new Map(), dialect: new Map(), model: new Map() }; // how many rows have each
    this.places += 1;
    this.waits += 1;
  }

  /** Put a row in the place of the one with its key; undefined: it is gone. */
  #put(table, key, row) {
    const before = this[table].get(key);
    if (row === undefined) this[table].delete(key);
    else this[table].set(key, row);
    if (table === "nodes") this.places += +!sameGroups(before, row);
    else if (table === "gpus") this.#putGpu(before, row);
    else if (table === "pods") this.#putPod(before, row);
    else if (table === "waiting") {
      this.waits += 1;
      if (before) this.waitingByName.delete(nameOf(before));
      if (row) this.waitingByName.set(nameOf(row), row);
    }
  }

  #putGpu(before, row) {
    const list = listIn(this.gpusOf, (row ?? before).node);
    replace(list, before, row);
    if (!before) list.sort((a, b) => (a.index ?? 0) - (b.index ?? 0));
    if (!list.length) this.gpusOf.delete(before.node);
    this.places += +(!before || !row || before.cut !== row.cut);
    this.#count("model", before, row);
  }

  #putPod(before, row) {
    if (before) for (const key of gpusOfPod(before)) {
      const left = this.holders.get(key)?.filter(({ pod }) => pod !== before) ?? [];
      if (left.length) this.holders.set(key, left);
      else this.holders.delete(key);
    }
    if (row) for (const [gpu, mib, milli, idle, borrowed] of row.shares ?? [])
      listIn(this.holders, `${row.node}/${gpu}`).push({ pod: row, mib, milli, idle, borrowed });
    for (const [index, keyOf] of [[this.podsOn, (pod) => pod.node], [this.named, (pod) => pod.name && nameOf(pod)]])
      move(index, before, row, keyOf);
    for (const name of ["namespace", "dialect"]) this.#count(name, before, row);
  }

  #count(name, before, row) {
    const counts = this.values[name];
    if (before?.[name] === row?.[name]) return;
    if (before?.[name]) {
      const left = counts.get(before[name]) - 1;
      if (left) counts.set(before[name], left);
      else counts.delete(before[name]);
    }
    if (row?.[name]) counts.set(row[name], (counts.get(row[name]) ?? 0) + 1);
  }

  /** The pod of this name that has a place. */
  placed(name) {
    return this.named.get(name)?.at(-1);
  }

  /** The namespaces with most pods have colours; they keep them while they are among these. */
  #colours() {
    const first = [...this.values.namespace].sort((a, b) => b[1] - a[1]).slice(0, COLOURS.length).map(([name]) => name);
    const kept = new Map([...(this.namespaces ?? [])].filter(([name]) => first.includes(name)));
    const free = COLOURS.filter((colour) => ![...kept.values()].includes(colour));
    for (const name of first.sort()) if (!kept.has(name)) kept.set(name, free.shift());
    this.namespaces = kept;
  }

  colour(namespace) {
    return this.namespaces.get(namespace) ?? OTHER;
  }
}

const nameOf = (row) => `${row.namespace}/${row.name}`;
const gpusOfPod = (pod) => new Set((pod.shares ?? []).map(([gpu]) => `${pod.node}/${gpu}`));

/** Whether two nodes stand in the same groups. */
function sameGroups(one, other) {
  if (!one || !other) return false;
  return one.model === other.model && one.zone === other.zone && JSON.stringify(one.labels ?? {}) === JSON.stringify(other.labels ?? {});
}

function listIn(index, key) {
  const there = index.get(key);
  if (there) return there;
  const list = [];
  index.set(key, list);
  return list;
}

/** Put a row into a list where another was: undefined for none. */
function replace(list, before, row) {
  const at = before === undefined ? list.length : list.indexOf(before);
  list.splice(at, before === undefined ? 0 : 1, ...(row === undefined ? [] : [row]));
}

/** Bring an index of lists up to date: a row stays in its place where its key does. */
function move(index, before, row, keyOf) {
  const from = before && keyOf(before), to = row && keyOf(row);
  if (from && from === to) return replace(index.get(from), before, row);
  if (from) {
    replace(index.get(from), before);
    if (!index.get(from).length) index.delete(from);
  }
  if (to) listIn(index, to).push(row);
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
