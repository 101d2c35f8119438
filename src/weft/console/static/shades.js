// What GPUs can be coloured by: which part of a cell is filled, and the same in words and as CSV.

import { cores, memory, number, podName } from "./dom.js";

const COOL_C = 40, STEP_C = 10; // the first of five steps ends at 50 °C
const part = (amount, whole) => (amount ?? 0) / (whole || 1);
const measured = (value, words) => (value == null ? "not measured" : words(value));

/** The part of a GPU, 0 to 1, that is free but that no pod of a usual size can use. Stranded is known of nodes: each of
 * its GPUs has a part of it in proportion to what is free there. */
const stranded = (gpu, node) => gpu.broken ? 0
  : Math.min(part(gpu.free_milli, gpu.milli), part(gpu.free_mib, gpu.memory_mib)) * part(node?.stranded_milli, node?.idle_milli);

/** By name: `part` of a cell that is filled, null where it is not known, and `words`. Where `listed`, the table of GPUs
 * has it anyway; `whole`: the whole cell is filled. */
export const SHADES = {
  cores: { text: "cores promised", listed: true, part: (gpu) => part(gpu.promised_milli, gpu.milli), words: (gpu) => cores(gpu.promised_milli ?? 0) },
  memory: { text: "memory promised", listed: true, part: (gpu) => part(gpu.promised_mib, gpu.memory_mib), words: (gpu) => memory(gpu.promised_mib ?? 0) },
  free: { text: "memory free", part: (gpu) => part(gpu.free_mib, gpu.memory_mib), words: (gpu) => memory(gpu.free_mib ?? 0) },
  stranded: { text: "free and stranded", part: stranded, words: (gpu, node) => cores(Math.round(1000 * stranded(gpu, node))) },
  lent: { text: "memory lent", part: (gpu) => part(gpu.lent_mib, gpu.memory_mib), words: (gpu) => memory(gpu.lent_mib ?? 0) },
  used: { text: "memory used", listed: true, part: (gpu) => (gpu.used_mib == null ? null : part(gpu.used_mib, gpu.memory_mib)), words: (gpu) => measured(gpu.used_mib, memory) },
  busy: { text: "busy", part: (gpu) => (gpu.used_percent == null ? null : gpu.used_percent / 100), words: (gpu) => measured(gpu.used_percent, (percent) => `${percent} %`) },
  temperature: { text: "temperature", whole: true, words: (gpu) => measured(gpu.celsius, (celsius) => `${celsius} °C`),
    part: (gpu) => (gpu.celsius == null ? null : Math.min(1, Math.max(0.01, (gpu.celsius - COOL_C) / (5 * STEP_C)))) },
  pods: { text: "pods", column: "Number of pods", whole: true, part: (gpu) => (gpu.pods ?? 0) / 5, words: (gpu) => number(gpu.pods ?? 0) },
  namespace: { text: "namespace", listed: true }, // of the pods, which the table names
};

/** A shade by its name; the first one where there is none of this name. */
export const shadeOf = (name) => SHADES[name] ?? SHADES.cores;

/** The head of its column. */
export const columnOf = ({ column, text }) => column ?? text[0].toUpperCase() + text.slice(1);

/** The rows of GPUs for CSV: all that they can be coloured by. */
export function gpuTable(model, gpus) {
  const holders = (gpu) => model.holders.get(`${gpu.node}/${gpu.index ?? 0}`) ?? [];
  return [["node", "gpu", "model", "milli", "promised_milli", "free_milli", "stranded_milli", "mib", "promised_mib", "free_mib", "idle_mib", "lent_mib",
    "used_mib", "used_percent", "celsius", "pod_count", "pods"],
    gpus.map((gpu) => [gpu.node, gpu.index ?? 0, gpu.model, gpu.milli ?? 0, gpu.promised_milli ?? 0, gpu.free_milli ?? 0,
      Math.round((gpu.milli ?? 0) * stranded(gpu, model.nodes.get(gpu.node))), gpu.memory_mib ?? 0, gpu.promised_mib ?? 0, gpu.free_mib ?? 0,
      gpu.idle_mib ?? 0, gpu.lent_mib ?? 0, gpu.used_mib, gpu.used_percent, gpu.celsius, gpu.pods ?? 0,
      holders(gpu).map(({ pod }) => podName(pod)).join(" ")])];
}
