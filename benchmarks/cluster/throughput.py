"""The rows about rates: Weft, kube-scheduler and bare Binding POSTs on the same nodes and pods.

A rate is of bindings. Who also writes an event for each has a second one, `rate_with_events`: until
the events are there, too. Bare POSTs write none.
"""

from contenders import Contender, kube_scheduler, raw, raw_go, weft, with_stub, with_weft
from objects import Manifest, ruled_pod
from report import Bar, Row, Sizes
from runs import Figures, interleaved, sound
from stage import Stage

WEFT = Contender("weft", "weft", weft())


def standalone(stage: Stage, sizes: Sizes) -> Row:
    """Preloaded one-GPU pods: against kube-scheduler, and against the server's own rate."""
    stage.add_nodes(sizes.nodes)
    contenders = [
        WEFT,
        Contender("kube-scheduler", "default-scheduler", kube_scheduler()),
        Contender("raw", "nobody", raw, events=False),
        Contender("raw in Go", "nobody", raw_go, events=False),
    ]
    found = interleaved(stage, contenders, sizes.pods, sizes.runs)
    rate = found["weft"]["rate"]
    bars = [
        Bar.at_least("weft / kube-scheduler", rate / found["kube-scheduler"]["rate"], 2.5),
        Bar.at_least("weft / kube-scheduler, with events", with_events(found), 1.5),
        Bar.at_least("weft / raw Binding POSTs", rate / found["raw"]["rate"], 0.75),
        Bar.at_least("weft / raw Binding POSTs in Go", rate / found["raw in Go"]["rate"], 0.5),
        Bar.true("audits without a fault", sound(found)),
    ]
    return Row({"nodes": sizes.nodes, "pods": sizes.pods}, found, bars)


def all_nodes(stage: Stage, sizes: Sizes) -> Row:
    """Weft looks at every node for every pod. kube-scheduler does so when told; else at some."""
    stage.add_nodes(sizes.many_nodes)
    contenders = [
        WEFT,
        Contender("kube-scheduler", "default-scheduler", kube_scheduler()),
        Contender("kube-scheduler, all nodes", "default-scheduler", kube_scheduler(100)),
    ]
    found = interleaved(stage, contenders, sizes.many_nodes_pods, sizes.runs)
    default, every = (found[one.name]["rate"] for one in contenders[1:])
    bars = [
        Bar.at_least("weft / kube-scheduler as it comes", found["weft"]["rate"] / default, 1.5),
        Bar.at_least("weft / kube-scheduler, with events", with_events(found), 1.5),
        Bar.at_least(
            "weft / kube-scheduler that scores all nodes", found["weft"]["rate"] / every, 10
        ),
        Bar.true("audits without a fault", sound(found)),
    ]
    return Row({"nodes": sizes.many_nodes, "pods": sizes.many_nodes_pods}, found, bars)


def with_events(found: dict[str, Figures]) -> float:
    """Weft's rate by kube-scheduler's, both until every event is written."""
    return float(found["weft"]["rate_with_events"] / found["kube-scheduler"]["rate_with_events"])


def rules(stage: Stage, sizes: Sizes) -> Row:
    """Pods of some applications that come all at once, each application spread over zones, with one
    pod a node: against kube-scheduler as it comes."""
    stage.add_nodes(sizes.nodes, zones=10)
    contenders = [WEFT, Contender("kube-scheduler", "default-scheduler", kube_scheduler())]

    def made(number: int, scheduler: str) -> Manifest:
        return ruled_pod(f"pod-{number:05d}", scheduler, f"app-{number % sizes.ruled_apps}")

    found = interleaved(stage, contenders, sizes.ruled_pods, sizes.runs, timeout_s=600, made=made)
    ratio = found["weft"]["rate"] / found["kube-scheduler"]["rate"]
    bars = [
        Bar.at_least("weft / kube-scheduler", ratio, 4),
        Bar.at_least("weft / kube-scheduler, with events", with_events(found), 1.5),
        Bar.true("audits without a fault", sound(found)),
    ]
    return Row({"nodes": sizes.nodes, "pods": sizes.ruled_pods}, found, bars)


def extender(stage: Stage, sizes: Sizes) -> Row:
    """kube-scheduler with Weft as its extender, beside one that only passes on."""
    stage.add_nodes(sizes.nodes)
    name = "default-scheduler"
    contenders = [
        Contender("kube-scheduler + weft", name, with_weft("nvidia")),
        Contender("kube-scheduler + stub", name, with_stub("nvidia")),
    ]
    found = interleaved(stage, contenders, sizes.extender_pods, sizes.runs)
    ratio = found["kube-scheduler + weft"]["rate"] / found["kube-scheduler + stub"]["rate"]
    bars = [
        Bar.at_least("with weft / with the stub", ratio, 0.85),
        Bar.true("audits without a fault", sound(found)),
    ]
    return Row({"nodes": sizes.nodes, "pods": sizes.extender_pods}, found, bars)
