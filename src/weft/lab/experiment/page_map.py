"""The page's map of nodes and GPUs: who holds what, and where capacity lies in fragments."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from weft.lab.experiment.style import HEAT
from weft.lab.simulate.holdings import ClusterHoldings, GpuHoldings, Holder, NodeHoldings

MOST_NODES = 4_000
"""The most nodes of all maps together: more would make the page slow to open."""
_FEW_NODES = 40
"""So few are drawn large, with their names."""


def map_section(holdings: Sequence[ClusterHoldings], order: Sequence[str]) -> str:
    """A map a policy, from the best on, as long as there is room; the first one open."""
    by_policy = {cluster.policy: cluster for cluster in holdings}
    shown: list[ClusterHoldings] = []
    for policy in order:
        cluster = by_policy.get(policy)
        drawn = sum(len(each.nodes) for each in shown)
        if cluster and (not shown or drawn + len(cluster.nodes) <= MOST_NODES):
            shown.append(cluster)
    if not shown:
        return ""
    maps = "\n".join(_map(cluster, is_open=number == 0) for number, cluster in enumerate(shown))
    left_out = [policy for policy in order if policy in by_policy][len(shown) :]
    note = f'<p class="note">{escape(_left_out(left_out))}</p>' if left_out else ""
    first = shown[0]
    return (
        f'<section aria-label="Nodes and GPUs">\n<h2>Nodes and GPUs {escape(first.moment)}, seed '
        f"{first.seed}</h2>\n{_KEY}\n{note}\n</section>\n{maps}"
    )


def _left_out(policies: Sequence[str]) -> str:
    names = ", ".join(policies)
    return f"A map more would make this page slow: run these alone for theirs: {names}."


_SHADES = "".join(f'<b class="{paint.name}"></b>' for paint in HEAT)
_KEY = (
    '<p class="mapkey"><span>A square is a GPU, a block a node.</span>'
    f'<span>idle <span class="n">{_SHADES}</span> held in full</span>'
    '<span><span class="n"><i></i></span> the part of a node’s GPUs that is idle and that typical '
    "pods cannot use</span></p>"
)


def _map(cluster: ClusterHoldings, *, is_open: bool) -> str:
    gpus = [gpu for node in cluster.nodes for gpu in node.gpus]
    idle = sum(not gpu.holders for gpu in gpus)
    lost = sum(node.fragments_milli for node in cluster.nodes) / 1000
    said = f"{_count(len(gpus), 'GPU')}, {idle:,} idle, {lost:,.1f} in fragments"
    large = len(cluster.nodes) <= _FEW_NODES
    nodes = sorted(cluster.nodes, key=lambda node: (node.gpus[0].model, node.name))
    by_model = {
        model: list(group) for model, group in groupby(nodes, lambda node: node.gpus[0].model)
    }
    order = sorted(by_model, key=lambda model: -sum(len(node.gpus) for node in by_model[model]))
    parts = "\n".join(_model(model, by_model[model], large=large) for model in order)
    return (
        f'<details class="map"{" open" if is_open else ""}>\n'
        f"<summary>{escape(cluster.policy)}: {said}</summary>\n{parts}\n</details>"
    )


def _model(model: str, nodes: Sequence[NodeHoldings], *, large: bool) -> str:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    held = 100 * sum(gpu.held for gpu in gpus) / len(gpus)
    lost = sum(node.fragments_milli for node in nodes) / 10 / len(gpus)
    said = f"{_count(len(nodes), 'node')}, {_count(len(gpus), 'GPU')}: {held:.1f} % held, "
    said += f"{lost:.1f} % in fragments"
    size = "nodes large" if large else "nodes"
    blocks = "\n".join(
        _node(node, named=large, stop=number == 0) for number, node in enumerate(nodes)
    )
    return (
        f"<h3>{escape(model or 'unknown model')} <span>{said}</span></h3>\n"
        f'<div class="{size}">\n{blocks}\n</div>'
    )


def _node(node: NodeHoldings, *, named: bool, stop: bool) -> str:
    """A block of squares; the tab key stops at the first, arrow keys go on from there."""
    cells = "".join(f'<b class="{HEAT[_shade(gpu.held)].name}"></b>' for gpu in node.gpus)
    lost = min(100.0, node.fragments_milli / 10 / len(node.gpus))
    bar = f'<i style="--f:{lost:.0f}%"></i>' if lost >= 0.5 else ""
    name = f"<em>{escape(node.name)}</em>" if named else ""
    columns = len(node.gpus) if len(node.gpus) < 4 else 4 if len(node.gpus) <= 8 else 8
    width = "" if columns == 4 else f' style="--c:{columns}"'
    return (
        f'<span class="n" data-spot="" role="img" tabindex="{0 if stop else -1}"{width} '
        f'title="{escape(_words(node))}">{cells}{bar}{name}</span>'
    )


def _shade(held: float) -> int:
    """Idle and full have shades of their own."""
    last = len(HEAT) - 1
    if held <= 0:
        return 0
    return last if held > 0.9995 else 1 + int(held * (last - 1))


def _words(node: NodeHoldings) -> str:
    """Names the holders; GPUs next to each other that are held alike are told together."""
    held = sum(gpu.held for gpu in node.gpus)
    lines = [
        f"{node.name}: {held:.2f} of {_count(len(node.gpus), 'GPU')} held, "
        f"{node.fragments_milli / 1000:.2f} in fragments"
    ]
    for holders, group in groupby(enumerate(node.gpus), lambda numbered: _holders(numbered[1])):
        numbers = [number for number, _ in group]
        several = len(numbers) > 1
        which = f"GPUs {numbers[0]}–{numbers[-1]}" if several else f"GPU {numbers[0]}"
        lines.append(f"{which}: {holders}")
    return "\n".join(lines)


def _holders(gpu: GpuHoldings) -> str:
    return ", ".join(_share(holder, gpu) for holder in gpu.holders) or "idle"


def _share(holder: Holder, gpu: GpuHoldings) -> str:
    parts = [f"{100 * holder.milli / max(1, gpu.milli):g} %"] if holder.milli else []
    if holder.memory_mib and holder.memory_mib != gpu.memory_mib:
        parts.append(f"{holder.memory_mib:,} MiB")
    return " ".join([holder.pod, *parts])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
