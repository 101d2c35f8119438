"""Templates that `weft experiment init` prints: one experiment for each kind of workload."""

import json
import re
from typing import NamedTuple

from weft.model import annotations

API_VERSION = "weft.dev/v1"
USUAL_SEEDS = 20
"""Number of seeds in templates whose runs take seconds."""
_HEAD = """\
apiVersion: {version}
kind: Experiment
name: {name}
question: {question}
"""

_TAIL = """\
# Policies, as `weft simulate --policy` takes them: NAME, NAME:option=value, ./file.py:Class.
schedulers: {schedulers}
# Schedulers that combine several policies: each has a name and policies (policy, weight).
profiles: []
# The scheduler with which all others are compared.
baseline: {baseline}
# Each seed is one workload, the same for all schedulers. Five or more give 95 % intervals.
seeds: {{first: 0, count: {seeds}}}
# Measures to report; empty: all.
measures: []
# Store each run's decisions, for `weft replay` and `weft explain pod --decisions`.
decisions: true
"""

_HOW_THEY_RUN = """\
  # Default: the workload's own arrivals, and the power of the GPU model.
  # arrivals: {kind: poisson, meanSeconds: 30.0}
  # power: {idleWatts: 27.0, contextWatts: 10.0, busyWatts: 200.0, gamma: 1.0}
  # Assumptions about run times on a shared GPU, each with name, compute, computeRatio,
  # computeShown, earlierRuns. Reports show headlines under each.
  assumptions: []
  # A node pulls a program's image when it first runs the program; 0: images are present.
  imageMib: 0
  pullMibPerSecond: 0.0
"""

_OVERPROVISIONED = (
    """\
workload:
  kind: overprovisioned
  # Percent by which memory requests exceed the memory used.
  percents: [0, 50, 100, 150, 200, 250]
  # Faults of the metrics that the scheduler sees: delaySeconds, dropped, missing, noise, spoof,
  # frozenSeconds, frozenBusy.
  faults: [{name: sound}]
  # ssd, rigid, mixed, peaky, late, grown
  mix: ssd
  # Number of GPUs; the workload has thirty jobs per GPU.
  cards: 1
  # Arrival rate × mean time alone ÷ GPUs; empty: the gaps in the published logs.
  loads: []
  # With harvesting, memory reserved on a GPU is at most this multiple of its memory.
  harvestLimit: 4.0
  scrapeSeconds: 5.0
"""
    + _HOW_THEY_RUN
)

_PAIRS = (
    """\
workload:
  kind: pairs
  # Measured pairs: Gavel's CSV (one source and GPU model of it), or Co-scheML's JSON.
  table: ${WEFT_DATA}/gavel/pairs.csv
  source: oracle_throughputs
  gpu: v100
  # Arrival rate × mean time alone ÷ GPUs.
  loads: [0.7, 0.9, 1.1]
  gpus: 16
  jobs: 400
  # Slowdowns that policies get: trained or ridge, learnt from half of the pairs; truth, exact.
  told: trained
  watched: false
  # Faults of predictions: levels with name, missing (share of applications), noise (sigma).
  predictions: []
  # Feedback from jobs' progress: levels with name, teach, evict, keepsWork, noise, missing,
  # periodSeconds.
  feedback: []
  # Levels: share of jobs that are latency-critical (0 to 1). All others are of jobClass.
  criticalShares: []
  jobClass: best-effort
  # Jobs' run time alone: its mean and distribution (fixed, exponential or lognormal).
  meanSeconds: 3600.0
  durations: lognormal
  # If set, pods declare their run time, with a relative error of up to this.
  # expectedError: 0.2
  # Distances between applications, for coscheml:pairing=mystic.
  mystic: ""
"""
    + _HOW_THEY_RUN
)

_OPENB = """\
workload:
  kind: openb
  nodes: nodes.csv
  pods: pods.csv
  # A file of published arrival orders; empty: orders are drawn by seed.
  order: ""
  # inflation: pods arrive and never leave; timed: they arrive and leave at the trace's times.
  mode: inflation
  # inflation: GPUs that all arriving pods together request, percent of the cluster's.
  demands: [130.0]
  # timed: arrivals are this many times faster; run times stay the same.
  compress: 1.0
  # timed: teams' queues, as in the scheduler's configuration.
  queues: {order: priority, reclaim: false, teams: []}
  # timed: pods may preempt those of lower priority, which run on for graceSeconds.
  preempt: true
  graceSeconds: 30.0
"""

_GANGS = """\
workload:
  kind: gangs
  # Use every n-th node of openb's list.
  nodes: nodes.csv
  everyNode: 1
  # Arrival rate × mean GPU time requested ÷ GPUs.
  loads: [0.7, 0.9, 1.1]
  # Jobs have 1 to 32 pods; in sharedRatio of the jobs, pods request a part of a GPU.
  jobs: 400
  sharedRatio: 0.44
"""

_QUEUE = """\
workload:
  kind: queue
  # Use every n-th node of openb's list.
  nodes: nodes.csv
  everyNode: 1
  # shares: many pods with a part of a GPU crowd out large pods; many-gpu: many large pods.
  mixes: [shares, many-gpu]
  # Arrival rate × mean GPU time requested ÷ GPUs.
  loads: [0.8, 0.9, 1.0]
  podsARun: 2000
  # The share of the pods (0 to 1) that only fill the cluster first and are not measured.
  warmUp: 0
  # The policy that places pods. `schedulers` below are queue disciplines.
  policy: least-stranding
  # Seconds of its work that a moved pod repeats.
  restartSeconds: 60
"""

_CARDS = """\
  # Nodes: openb's CSV; if empty, `gpus` GPUs of one model, nodeGpus per node.
  nodes: ""
  gpus: 4
  nodeGpus: 4
  gpuModel: V100
  gpuMib: 32510
"""

_COMMON = """\
  # Job arrivals: uniform, poisson, philly-like, or a trace's own gaps (kind: trace, file).
  arrivals: {kind: poisson, meanSeconds: 30.0}
  # Assumptions on shared GPUs: compute measured or proportional; earlierRuns true or false.
  assumptions:
    - {name: in-proportion, compute: proportional}
  # Arrival rate × mean time alone ÷ GPUs, instead of meanSeconds; empty: meanSeconds applies.
  loads: []
  faults: [{name: sound}]
  harvestLimit: 4.0
  scrapeSeconds: 5.0
  # A node pulls a program's image when it first runs the program; 0: images are present.
  imageMib: 0
  pullMibPerSecond: 0.0
  # Default: the power of the GPU model.
  # power: {idleWatts: 27.0, contextWatts: 10.0, busyWatts: 200.0, gamma: 1.0}
"""

_KNOTS_CLUSTER = (
    """\
workload:
  kind: kube-knots-cluster
  # Application mixes of Rodinia programs and services; their queries are late at 150 ms.
  mixes: [1, 2, 3]
  # P100s with 16 GB, one per node.
  gpus: 10
  jobs: 240
  # Arrival rate × mean time alone ÷ GPUs; empty: each mix's own.
  loads: []
  faults: [{name: sound}]
  harvestLimit: 4.0
  scrapeSeconds: 5.0
"""
    + _HOW_THEY_RUN
)

_KNOTS_DL = (
    """\
workload:
  kind: kube-knots-dl
  # P100s with 16 GB, eight per node.
  gpus: 256
  training: 520
  inference: 1400
  hours: 12.0
  faults: [{name: sound}]
  harvestLimit: 4.0
  scrapeSeconds: 60.0
"""
    + _HOW_THEY_RUN
)

_JOB_LIST = (
    """\
workload:
  kind: job-list
  # YAML or CSV: jobs' requests, use and durations (docs/howto/describe-an-experiment.md).
  jobsFile: jobs.csv
  # Percent by which memory requests exceed those in the list.
  percents: [0, 100]
"""
    + _CARDS
    + _COMMON
)

_MLPERF_LIST = (
    """\
workload:
  kind: mlperf-list
  # JSON: [{model, container_name, memory_request_MiB, list: [{queries, replicas}]}].
  jobsFile: workload.json
  percents: [0, 50, 100, 150, 200, 250]
  # Seconds of one query alone, by model, and seconds to load a model.
  querySeconds: {tf-resnet50: 0.136}
  startSeconds: 17.4
  # A query that takes longer is late; 0: no limit.
  queryLimitSeconds: 0.25
"""
    + _CARDS.replace("gpus: 4", "gpus: 1")
    + _COMMON
)

_PODS = (
    """\
workload:
  kind: pods
  # A manifest, or a folder of them.
  manifests: manifests
  copies: 10
  # Each pod uses usedRatio of its memory request and computeRatio of the SMs, for `seconds`.
  usedRatio: 0.5
  computeRatio: 0.3
  seconds: 600.0
"""
    + _CARDS
    + _COMMON
)

_CLUSTER_JOBS = """\
workload:
  kind: cluster-jobs
  # Percent by which memory requests exceed memoryMib.
  percents: [0, 100]
  # Seconds between Jobs: the bounds of delays that are drawn by seed.
  delaySeconds: [20, 40]
  # Or `models: FILE`, Ferikoglou et al.'s JSON, instead. runSeconds is used in simulations.
  jobs:
    - name: classify
      image: registry.example/weft-workloads:1
      command: [python, -m, weft.lab.workloads, answer, resnet-infer-1, --queries, "1024"]
      memoryMib: 7000
      count: 30
      runSeconds: 60
cluster:
  # Pods run on nodes with all these labels. kubeconfig and context default to kubectl's.
  nodeSelector: {nvidia.com/gpu.present: "true"}
  # The metrics server with samples of the GPUs; without it, GPU use is not recorded.
  prometheus: {url: "http://prometheus.monitoring:9090"}
  # request: how pods request GPUs. annotations: a probe pod must get them before each run.
  # mend: the command that sets the scheduler up. policy: what replaces it in simulations.
  schedulers:
    - name: whole-cards
      request: {resource: nvidia.com/gpu}
      policy: exclusive
    - name: gpushare
      request: {resource: aliyun.com/gpu-mem, unit: GiB}
      annotations: [ALIYUN_COM_GPU_MEM_IDX]
      mend: kubectl -n kube-system rollout restart deployment gpushare-schd-extender
      policy: gpushare
    - name: weft
      schedulerName: weft
      reportingController: weft-scheduler
      request: {resource: MEMORY, unit: MiB}
      annotations: [PLACEMENT]
      mend: kubectl -n weft-system rollout restart deployment weft-scheduler
      policy: best-fit
  # Nodes of `run --simulated`.
  simulated: {nodes: 1, gpus: 1, memoryMib: 32510}
# How often each seed is run; a seed's value is the mean of these runs.
repeats: 1
""".replace("MEMORY", annotations.GPU_MEMORY).replace("PLACEMENT", annotations.PLACEMENT)

_SHARING = {"schedulers": "[gpushare, exclusive, auto]", "baseline": "gpushare"}
_KNOTS = {
    "schedulers": "[res-ag, exclusive, kube-knots-cbp, kube-knots-pp]",
    "baseline": "res-ag",
}
_TRAINING = {"schedulers": "[res-ag, gandiva, kube-knots-pp]", "baseline": "res-ag"}


def _template(name: str, question: str, workload: str, tail: dict[str, str]) -> str:
    head = _HEAD.format(version=API_VERSION, name=name, question=question)
    return head + workload + _TAIL.format(**{"seeds": str(USUAL_SEEDS), **tail})


TEMPLATES = {
    "overprovisioned": _template(
        "overprovisioned",
        "Does lending idle GPU memory shorten jobs, and is it safe?",
        _OVERPROVISIONED,
        _SHARING,
    ),
    "pairs": _template(
        "pairs",
        "Does predicted interference shorten jobs?",
        _PAIRS,
        {"schedulers": "[binpack, interference, oracle]", "baseline": "binpack"},
    ),
    "openb": _template(
        "openb",
        "Which policy allocates the most GPUs?",
        _OPENB,
        {"schedulers": "[fgd, best-fit, least-stranding]", "baseline": "fgd"},
    ),
    "gangs": _template(
        "gangs",
        "How long do jobs of many pods wait?",
        _GANGS,
        {
            "schedulers": "[least-stranding, per-pod, kai-like, volcano-like]",
            "baseline": "least-stranding",
            "seeds": "10",
        },
    ),
    "queue": _template(
        "queue",
        "Under which discipline do pods wait least, and do moves help?",
        _QUEUE,
        {
            "schedulers": "[first-fit, first-fit-move-30, reserve, reserve-move-30]",
            "baseline": "first-fit",
            "seeds": "10",
        },
    ),
    "kube-knots-cluster": _template(
        "kube-knots-cluster",
        "Does Kube-Knots keep queries in time, and save energy?",
        _KNOTS_CLUSTER,
        _KNOTS,
    ),
    "kube-knots-dl": _template(
        "kube-knots-dl",
        "How long do training jobs take?",
        _KNOTS_DL,
        {**_TRAINING, "seeds": "10"},  # a run takes minutes
    ),
    "job-list": _template("job-list", "Which policy is best for my jobs?", _JOB_LIST, _SHARING),
    "mlperf-list": _template(
        "mlperf-list", "Which policy is best for these programs?", _MLPERF_LIST, _SHARING
    ),
    "pods": _template("pods", "Which policy is best for my pods?", _PODS, _SHARING),
    "cluster-jobs": _template(
        "cluster-jobs",
        "Which scheduler runs these Jobs soonest?",
        _CLUSTER_JOBS,
        {"schedulers": "[whole-cards, gpushare, weft]", "baseline": "whole-cards", "seeds": "10"},
    ),
}
"""The template of an experiment by its kind of workload."""


class Wishes(NamedTuple):
    """A user's changes to a template; None, () and "" leave a field unchanged."""

    name: str = ""
    schedulers: tuple[str, ...] = ()
    baseline: str = ""
    seeds: int | None = None


def written(workload: str, wishes: Wishes) -> str:
    """Return the template of this workload with the changes."""
    text = TEMPLATES[workload]
    changed = {
        "name": wishes.name,
        "schedulers": f"[{', '.join(map(_quoted, wishes.schedulers))}]" * bool(wishes.schedulers),
        "baseline": _quoted(wishes.baseline or next(iter(wishes.schedulers), "")),
        "seeds": "" if wishes.seeds is None else f"{{first: 0, count: {wishes.seeds}}}",
    }
    lines = text.splitlines()
    for at, line in enumerate(lines):
        value = changed.get(line.partition(":")[0])
        if value:
            lines[at] = f"{line.partition(':')[0]}: {value}"
    return "\n".join(lines) + "\n"


def line_of(template: str, field: str) -> str:
    """Return the text after the name of a top-level field; "" if the template lacks the field."""
    match = re.search(rf"(?m)^{field}: (.*)$", template)
    return match[1] if match else ""


def usual_seeds(workload: str) -> int:
    """Return the number of seeds in the template of this workload."""
    match = re.search(r"count: (\d+)}", line_of(TEMPLATES[workload], "seeds"))
    assert match is not None
    return int(match[1])


def _quoted(name: str) -> str:
    """Quote the name for a YAML list, if necessary."""
    plain = re.fullmatch(r"[A-Za-z0-9_./-]*", name)
    return name if plain else json.dumps(name)
