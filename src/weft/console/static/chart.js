// Amounts over time, as steps: each holds from its moment until the next.

import { duration, el, svg } from "./dom.js";

const WIDTH = 600, HEIGHT = 120;
export const LINES = ["var(--ramp-3)", "var(--warn)"];

/** A chart of lines `{ name, points: [[seconds, value]], words }`, up to `most`; a bar marks `now`. */
export function chart(label, lines, { most, now } = {}) {
  const all = lines.flatMap((line) => line.points);
  if (!all.length) return el("p", { class: "empty" }, "Nothing is known yet.");
  const first = Math.min(...all.map(([at]) => at)), last = Math.max(...all.map(([at]) => at), first + 1e-6);
  const top = most || Math.max(...all.map(([, value]) => value), 1e-6);
  const x = (at) => ((at - first) / (last - first)) * WIDTH;
  const y = (value) => HEIGHT - 2 - (Math.min(value, top) / top) * (HEIGHT - 4);
  const steps = (points) => points.map(([at, value], n) =>
    `${n ? `H${x(at).toFixed(1)}V` : `M${x(at).toFixed(1)},`}${y(value).toFixed(1)}`).join("") + `H${WIDTH}`;
  return el("figure", {},
    el("figcaption", {}, label, lines.map((line, n) => el("small", { class: `line-${n}` }, `${n ? "- - " : "— "}${line.name}`))),
    svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${label}: ${lines.map((line) => `${line.name}, at last ${line.words(line.points.at(-1)[1])}`).join("; ")}` },
      svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, stroke: "var(--line)" }),
      lines.map((line, n) => svg("path", { d: steps(line.points), fill: "none", stroke: LINES[n], "stroke-width": 2,
        "stroke-dasharray": n ? "5 4" : null, "vector-effect": "non-scaling-stroke" })),
      now == null ? null : svg("line", { x1: x(now), x2: x(now), y1: 0, y2: HEIGHT, stroke: "var(--faint)", "vector-effect": "non-scaling-stroke" })),
    el("p", { class: "scale" }, `${duration(last - first)}, up to ${lines[0].words(top)} at the top`));
}
