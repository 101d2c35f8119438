// Amounts over time, as steps: each holds from its moment until the next.

import { duration, el, folded, number, svg } from "./dom.js";
import { moment, numbered, timeless } from "./time.js";

const WIDTH = 600, HEIGHT = 120;
export const LINES = ["var(--ramp-3)", "var(--warn)"];

/** A chart of lines `{ name, points: [[seconds, value]], words }`, up to `most`, with a table of the same; a bar marks
 * `now`, times are said from when it `began`. Where no time passes, points follow each other by their numbers. */
export function chart(label, lines, { most, now, began } = {}) {
  const times = lines.flatMap((line) => line.points).map(([at]) => at);
  if (!times.length) return el("p", { class: "empty" }, "Nothing is known yet.");
  if (timeless(times)) {
    const count = Math.max(...lines.map((line) => line.points.length));
    const apart = lines.map((line) => ({ ...line, points: line.points.map(([, value], n) => [n, value]) }));
    return steps(label, apart, { most, span: `${number(count)} moments`, words: (n) => numbered(n, { length: count }) });
  }
  return steps(label, lines, { most, now, words: (at) => moment(at, began ?? Math.min(...times)) });
}

/** A row for each moment at which a line has a point. */
function rows(lines, words) {
  const values = lines.map(({ points }) => new Map(points));
  const times = [...new Set(lines.flatMap(({ points }) => points.map(([at]) => at)))].sort((a, b) => a - b);
  const held = lines.map(() => "–");
  return el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ["Time", ...lines.map(({ name }) => name)].map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, times.map((at) => el("tr", {}, el("td", {}, words(at)), lines.map((line, n) => {
      if (values[n].has(at)) held[n] = line.words(values[n].get(at));
      return el("td", { class: "n" }, held[n]);
    }))))));
}

function steps(label, lines, { most, now, span, words }) {
  const all = lines.flatMap((line) => line.points);
  const first = Math.min(...all.map(([at]) => at)), last = Math.max(...all.map(([at]) => at), first + 1e-6);
  const top = most || Math.max(...all.map(([, value]) => value), 1e-6);
  const x = (at) => ((at - first) / (last - first)) * WIDTH;
  const y = (value) => HEIGHT - 2 - (Math.min(value, top) / top) * (HEIGHT - 4);
  const path = (points) => points.map(([at, value], n) =>
    `${n ? `H${x(at).toFixed(1)}V` : `M${x(at).toFixed(1)},`}${y(value).toFixed(1)}`).join("") + `H${WIDTH}`;
  return el("figure", {},
    el("figcaption", {}, label, lines.map((line, n) => el("small", { class: `line-${n}` }, `${n ? "- - " : "— "}${line.name}`))),
    svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${label}: ${lines.map((line) => `${line.name}, at last ${line.words(line.points.at(-1)[1])}`).join("; ")}` },
      svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, stroke: "var(--line)" }),
      lines.map((line, n) => svg("path", { d: path(line.points), fill: "none", stroke: LINES[n], "stroke-width": 2,
        "stroke-dasharray": n ? "5 4" : null, "vector-effect": "non-scaling-stroke" })),
      now == null ? null : svg("line", { x1: x(now), x2: x(now), y1: 0, y2: HEIGHT, stroke: "var(--faint)", "vector-effect": "non-scaling-stroke" })),
    el("p", { class: "scale" }, `${span ?? duration(last - first)}, up to ${lines[0].words(top)} at the top`),
    folded(`${label}: as a table`, () => rows(lines, words)));
}
