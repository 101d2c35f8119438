"""What `weft experiment init` prints: an experiment of each kind of workload, to be changed."""

API_VERSION = "weft.dev/v1"
_HEAD = """\
apiVersion: {version}
kind: Experiment
name: {name}
question: {question}
"""

_TAIL = """\
# Policies, as `weft simulate --policy` takes them: NAME, NAME:option=value, ./file.py:Class.
schedulers: {schedulers}
# What the others are compared with.
baseline: {baseline}
# Each seed is one workload, the same for all schedulers. Five and more give intervals.
seeds: {{first: 0, count: 10}}
"""

_OVERPROVISIONED = """\
workload:
  kind: overprovisioned
  # How much more memory jobs ask for than they use, percent.
  percents: [0, 50, 100, 150, 200, 250]
  # What goes wrong between cards and scheduler: delaySeconds, dropped, missing, noise, spoof,
  # frozenSeconds, frozenBusy.
  faults: [{name: sound}]
  # ssd, rigid, mixed, peaky, late, grown
  mix: ssd
  # Each card gets thirty jobs.
  cards: 1
  # Harvesting promises at most so many times a card's memory.
  harvestLimit: 4.0
  scrapeSeconds: 5.0
"""

_PAIRS = """\
workload:
  kind: pairs
  # Measured pairs: Gavel's CSV (one source and GPU model of it), or Co-scheML's JSON.
  table: ${WEFT_DATA}/gavel/pairs.csv
  source: oracle_throughputs
  gpu: v100
  # Jobs that come, by mean time alone, for each GPU.
  loads: [0.7, 0.9, 1.1]
  gpus: 16
  jobs: 400
  # trained, ridge: learnt from half of the pairs; truth: all is known.
  told: trained
  watched: false
"""

_OPENB = """\
workload:
  kind: openb
  nodes: nodes.csv
  pods: pods.csv
  # A file of published arrival orders; left out, orders are drawn by seed.
  order: ""
  # inflation: pods come and never leave; timed: at the trace's times, and leave.
  mode: inflation
  # GPUs asked for in the end, percent of all.
  demands: [130.0]
"""

TEMPLATES = {
    "overprovisioned": _HEAD.format(
        version=API_VERSION,
        name="overprovisioned",
        question="Does lending idle GPU memory shorten jobs, and is it safe?",
    )
    + _OVERPROVISIONED
    + _TAIL.format(schedulers="[gpushare, exclusive, auto]", baseline="gpushare"),
    "pairs": _HEAD.format(
        version=API_VERSION, name="pairs", question="Does predicted interference shorten jobs?"
    )
    + _PAIRS
    + _TAIL.format(schedulers="[binpack, interference, oracle]", baseline="binpack"),
    "openb": _HEAD.format(
        version=API_VERSION, name="openb", question="Which policy allocates the most GPUs?"
    )
    + _OPENB
    + _TAIL.format(schedulers="[fgd, best-fit, least-stranding]", baseline="fgd"),
}
"""Text of an experiment by its kind of workload."""
