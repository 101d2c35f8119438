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
# Schedulers of several policies: levels of name, policies (policy, weight).
profiles: []
# What the others are compared with.
baseline: {baseline}
# Each seed is one workload, the same for all schedulers. Five and more give intervals.
seeds: {{first: 0, count: {seeds}}}
# Measures that reports are about; left out: all.
measures: []
# Each cell keeps its decisions, for `weft replay` and `weft explain pod --decisions`.
decisions: true
"""

_HOW_THEY_RUN = """\
  # Default: the workload's own arrivals, and the power of the GPU model.
  # arrivals: {kind: poisson, meanSeconds: 30.0}
  # power: {idleWatts: 27.0, contextWatts: 10.0, busyWatts: 200.0, gamma: 1.0}
  # Levels of what is assumed of time on a card: name, compute, computeRatio, computeShown,
  # earlierRuns. Reports show headlines under each.
  assumptions: []
  # Images are pulled where a node first needs them; 0: they are there.
  imageMib: 0
  pullMibPerSecond: 0.0
"""

_OVERPROVISIONED = (
    """\
workload:
  kind: overprovisioned
  # How much more memory jobs ask for than they use, percent.
  percents: [0, 50, 100, 150, 200, 250]
  # Faults of the metrics that the scheduler sees: delaySeconds, dropped, missing, noise, spoof,
  # frozenSeconds, frozenBusy.
  faults: [{name: sound}]
  # ssd, rigid, mixed, peaky, late, grown
  mix: ssd
  # Each card gets thirty jobs.
  cards: 1
  # Arrival rate × mean time alone ÷ GPUs; left out, the logs' own gaps.
  loads: []
  # Harvesting promises at most so many times a card's memory.
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
  # Jobs that come, by mean time alone, for each GPU.
  loads: [0.7, 0.9, 1.1]
  gpus: 16
  jobs: 400
  # trained, ridge: learnt from half of the pairs; truth: all is known.
  told: trained
  watched: false
  # What is wrong with that: levels of name, missing (share of applications), noise (sigma).
  predictions: []
  # Jobs' progress: levels of name, teach, evict, keepsWork, noise, missing, periodSeconds.
  feedback: []
  # So many of the jobs are latency-critical; else all are of jobClass.
  criticalShares: []
  jobClass: best-effort
  # Time alone: its mean, and fixed, exponential or lognormal.
  meanSeconds: 3600.0
  durations: lognormal
  # Where given, jobs say how long they take, wrong by up to this ratio.
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
  # A file of published arrival orders; left out, orders are drawn by seed.
  order: ""
  # inflation: pods come and never leave; timed: at the trace's times, and leave.
  mode: inflation
  # GPUs allocated at the end, percent of all.
  demands: [130.0]
  # timed: pods come so many times faster, and last as long.
  compress: 1.0
  # timed: teams' queues, as in the scheduler's configuration.
  queues: {order: priority, reclaim: false, teams: []}
  # timed: pods of higher priority end others, who run on for so long.
  preempt: true
  graceSeconds: 30.0
"""

_GANGS = """\
workload:
  kind: gangs
  # Use every n-th node of openb's list.
  nodes: nodes.csv
  everyNode: 1
  # Arrival rate × mean GPU time asked for ÷ GPUs.
  loads: [0.7, 0.9, 1.1]
  # Of 1 to 32 pods each; so many of them have pods that ask for a part of a GPU.
  jobs: 400
  sharedRatio: 0.44
"""

_QUEUE = """\
workload:
  kind: queue
  # Use every n-th node of openb's list.
  nodes: nodes.csv
  everyNode: 1
  # Shares that crowd large pods out, or many large pods.
  mixes: [shares, many-gpu]
  # Arrival rate × mean GPU time asked for ÷ GPUs.
  loads: [0.8, 0.9, 1.0]
  podsARun: 2000
  # The first part of the pods only fills the cluster: they are not measured.
  warmUp: 0
  # The policy that places pods. The schedulers are disciplines of the queue.
  policy: least-stranding
  # What a pod that is moved has to run again.
  restartSeconds: 60
"""

_CARDS = """\
  # The nodes of openb's CSV; left out, so many GPUs of a model.
  nodes: ""
  gpus: 4
  nodeGpus: 4
  gpuModel: V100
  gpuMib: 32510
"""

_COMMON = """\
  # When jobs come: uniform, poisson, philly-like, or a trace's own gaps (kind: trace, file).
  arrivals: {kind: poisson, meanSeconds: 30.0}
  # Assumed of time on a card: compute measured or proportional, earlierRuns known or not.
  assumptions:
    - {name: in-proportion, compute: proportional}
  # Arrival rate × mean time alone ÷ GPUs, which sets the mean gap; left out, that above.
  loads: []
  faults: [{name: sound}]
  harvestLimit: 4.0
  scrapeSeconds: 5.0
  # Images are pulled where a node first needs them: imageMib, pullMibPerSecond.
  imageMib: 0
  pullMibPerSecond: 0.0
  # Left out, cards draw what their model does.
  # power: {idleWatts: 27.0, contextWatts: 10.0, busyWatts: 200.0, gamma: 1.0}
"""

_KNOTS_CLUSTER = (
    """\
workload:
  kind: kube-knots-cluster
  # Application mixes of Rodinia programs and services; their queries are late at 150 ms.
  mixes: [1, 2, 3]
  # P100s of 16 GB, a node each.
  gpus: 10
  jobs: 240
  # Arrival rate × mean time alone ÷ GPUs; left out, each mix's own.
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
  # P100s of 16 GB, eight a node.
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
  # YAML or CSV: what jobs ask, use over time, and take (docs/howto/describe-an-experiment.md).
  jobsFile: jobs.csv
  # How much more than the list says they ask for, percent.
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
  # How long a query of each model takes alone, and loading it.
  querySeconds: {tf-resnet50: 0.136}
  startSeconds: 17.4
  # A query that takes longer is late; 0: none is.
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
  # They use so much of the memory and of the SMs that they ask for, for so long.
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
  # How much more memory than memoryMib they ask for, percent.
  percents: [0, 100]
  # One comes after another at delays drawn by seed.
  delaySeconds: [20, 40]
  # `models: FILE` takes the place of jobs for Ferikoglou's JSON. runSeconds: in simulations.
  jobs:
    - name: classify
      image: registry.example/weft-workloads:1
      command: [python, -m, weft.lab.workloads, answer, resnet-infer-1, --queries, "1024"]
      memoryMib: 7000
      count: 30
      runSeconds: 60
cluster:
  # Of nodes with all these labels; kubeconfig, context: as kubectl's where left out.
  nodeSelector: {nvidia.com/gpu.present: "true"}
  # Its samples of GPUs; left out, there are no series.
  prometheus: {url: "http://prometheus.monitoring:9090"}
  # How each is asked for GPUs; before its turn a probe pod must get these annotations.
  # mend: the command that puts it in the path. policy: its name in simulations.
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
# Each turn is run so often; a seed's value is the mean.
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
