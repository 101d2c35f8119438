"""500 shared pods at once on one node, which they fill to 98 %: in both forms.

All must be bound, no card over, and at most 1 % of the bindings refused: a pod that is refused
has waited for nothing.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import Objects
from weft_process import (
    ALONE,
    EXTENDER,
    Weft,
    all_bound,
    audited,
    extender_config,
    pod,
    resources,
    weft,
)

PODS, CARDS, CARD_MIB = 500, 8, 81_920
MEMORY = "elasticgpu.io/gpu-memory"
MOST_REFUSED = PODS // 100


def one_node(plane: ControlPlane) -> None:
    """One with eight cards, on which the kubelet would take so many pods."""
    plane.create_fake_node(
        "node-0",
        resources(CARDS, CARD_MIB) | {"pods": "1000", "cpu": "256"},
        labels={
            "nvidia.com/gpu.count": str(CARDS),
            "nvidia.com/gpu.memory": str(CARD_MIB),
            "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        },
    )


def burst(scheduler: str) -> Objects:
    """Sizes from 0.5 to 1.5 times the mean, together 98 % of the node's memory.

    Twice from large to small: with large ones last, the cards' rests could not take them.
    """
    mean = CARDS * CARD_MIB * 985 // 1000 // PODS
    sizes = [mean * (50 + 100 * ((7 * i) % PODS) // PODS) // 100 for i in range(PODS)]
    sizes = sorted(sizes[: PODS // 2], reverse=True) + sorted(sizes[PODS // 2 :], reverse=True)
    return [pod(f"p-{i:03d}", scheduler, {MEMORY: size}) for i, size in enumerate(sizes)]


def refused(process: Weft, plane: ControlPlane, namespace: str, form: str) -> int:
    """How many bindings Weft refused, or the API server did."""
    if form == "extender":
        answers: Counter[str] = Counter()
        for name, value in process.metrics().items():
            if found := re.match(r"weft_extender_requests_total\{(.*)\}", name):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
                if labels["verb"] == "bind":
                    answers[labels["result"]] += int(value)
        assert answers["ok"] == PODS
        return answers.total() - PODS
    events = plane.api.list("Event", namespace)
    return sum(
        event.get("count", 1) or 1
        for event in events
        if event["reason"] in ("FailedScheduling", "FailedBinding")
    )


@pytest.mark.parametrize("form", ["alone", "extender"])
def test_500_pods_fill_one_node(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, form: str
) -> None:
    one_node(control_plane)
    with weft(control_plane, tmp_path, ALONE, *EXTENDER) as process:
        if form == "extender":
            qps = {"clientConnection": {"qps": 5000, "burst": 5000}}
            control_plane.start_scheduler(extender_config(process.url, "elastic") | qps)
        scheduler = "weft" if form == "alone" else "default-scheduler"
        control_plane.create_pods(namespace, burst(scheduler))
        control_plane.api.wait_for(all_bound(PODS), "Pod", namespace, timeout_s=90)
        ledger = audited(control_plane, namespace)
        used = sum(ledger.table.memory_used)
        assert used >= 0.975 * CARDS * CARD_MIB
        assert max(ledger.table.memory_used) <= CARD_MIB
        assert refused(process, control_plane, namespace, form) <= MOST_REFUSED
        assert process.running
