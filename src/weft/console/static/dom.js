// Elements, and how they are brought up to date in place. Text only ever becomes a text node.

/** An element: `el("a", { href, class: "x" }, "text", child)`. null and false children are left out. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

/** An element of SVG, likewise. Its looks are attributes: style attributes are forbidden here. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

/** A table of rows `[key, name, ...cells]`, of whose cells the first `numbers` are numbers. On a narrow screen each row is a block in which every
 * cell says its column. */
export function stackedTable(head, numbers, rows) {
  return el("table", { class: "stacked" }, el("thead", {}, el("tr", {}, head.map((text) => el("th", {}, text)))),
    el("tbody", {}, rows.map(([key, name, ...cells]) => el("tr", { "data-key": key }, el("td", {}, name),
      cells.map((text, at) => el("td", { class: at < numbers && "n", "data-head": head[at + 1] }, text))))));
}

/** Details whose content is made only while they are open, as it may have many rows. */
export function folded(summary, content) {
  const details = el("details", { class: "as-table" }, el("summary", {}, summary), el("div"));
  details.content = content;
  details.ontoggle = () => unfold(details);
  return details;
}

/** Bring the content of open details up to date. */
export const unfold = (details) => fill(details.lastElementChild, details.open ? details.content() : null);

/** Make the children of `target` those given, keeping elements (and focus) where they are alike. */
export function fill(target, ...children) {
  const wanted = el("div", {}, ...children);
  matchChildren(target, wanted);
}

function match(target, source) {
  if (target.nodeType !== source.nodeType || target.nodeName !== source.nodeName) {
    target.replaceWith(source);
    return;
  }
  if (target.nodeType === Node.TEXT_NODE) {
    if (target.data !== source.data) target.data = source.data;
    return;
  }
  const ours = ({ name }) => !["style", "open", "tabindex"].includes(name); // styles go by their property: CSP
  for (const { name } of [...target.attributes].filter(ours))
    if (!source.hasAttribute(name)) target.removeAttribute(name);
  for (const { name, value } of [...source.attributes].filter(ours))
    if (target.getAttribute(name) !== value) target.setAttribute(name, value);
  target.onclick = source.onclick;
  if (source.style.cssText !== target.style.cssText) target.style.cssText = source.style.cssText;
  if (source.content && target.content) { // folded
    target.content = source.content;
    match(target.firstElementChild, source.firstElementChild);
    return unfold(target);
  }
  matchChildren(target, source);
}

function matchChildren(target, source) {
  const wanted = [...source.childNodes];
  const keys = new Set(wanted.map((child) => child.dataset?.key));
  const keyed = new Map();
  for (const child of [...target.children]) {
    const { key } = child.dataset;
    if (!key) continue;
    if (keys.has(key)) keyed.set(key, child);
    else child.remove(); // first: rows that stay in their order are not moved then
  }
  wanted.forEach((child, place) => {
    const key = child.dataset?.key;
    const here = target.childNodes[place];
    const there = key ? keyed.get(key) : here?.dataset?.key ? undefined : here;
    keyed.delete(key);
    if (!there) return target.insertBefore(child, here ?? null);
    if (there !== here) moveTo(there, place);
    match(there, child);
  });
  while (target.childNodes.length > wanted.length) target.lastChild.remove();
}

/** Bring a child to an earlier place. Whoever is moved loses the focus: if it has that, those before it are moved. */
function moveTo(child, place) {
  const { childNodes } = child.parentNode;
  if (!child.contains(document.activeElement)) child.parentNode.insertBefore(child, childNodes[place]);
  else while (childNodes[place] !== child) child.parentNode.append(childNodes[place]);
}

/** A bar of parts, each `{ part (0 to 1), colour, title }`. */
export function bar(parts, label) {
  const pieces = parts.map(({ part, colour, title }) => {
    const piece = el("i", { title });
    piece.style.width = `${Math.max(0, Math.min(1, part)) * 100}%`;
    piece.style.background = colour;
    return piece;
  });
  return el("span", { class: "bar", role: "img", "aria-label": label }, pieces);
}

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, signDisplay: "negative" }).replace("-", "−");
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
export const cores = (milli) => `${+(milli / 10).toFixed(1)} %`;
export const memory = (mib) =>
  mib >= 10240 ? `${(mib / 1024).toLocaleString("en", { maximumFractionDigits: mib < 1_024_000 ? 1 : 0 })} GiB` : `${number(mib)} MiB`;
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

const CLOCKS_S = 60;

/** A duration in one or two units: `3 min 20 s`. What began later than now was timed by another clock. */
export function duration(seconds) {
  if (seconds < -CLOCKS_S) return `${duration(-seconds)} from now (clocks differ)`;
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const path = (...parts) => "/" + parts.map(encodeURIComponent).join("/");
/** A pod in words; of one that the viewer may not know there is no name. */
export const podName = (pod) => (pod.name ? `${pod.namespace}/${pod.name}` : "another namespace's pod");
export const podLink = (pod) =>
  pod.name ? el("a", { href: path("pod", pod.namespace, pod.name) }, podName(pod)) : el("span", { class: "hidden-name" }, podName(pod));
export const gpuLink = (node, index, text = `GPU ${index}`) =>
  el("a", { href: path("gpu", node, index) }, text);
export const queueLink = (name) => (name ? el("a", { href: path("queue", name) }, name) : "");
export const nodeLink = (name) => el("a", { href: path("node", name) }, name);
