"""A pod that is resized in place counts by what its node sets aside for it."""

from typing import Any

import msgspec
import pytest
from account_world import Account

from weft.kube.pods import Pod

REFUSED = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = REFUSED | {"reason": "Deferred"}


def pod(spec: str, allocated: str = "", runs_with: str = "", *conditions: dict[str, str]) -> Pod:
    """A pod bound to n whose one container asks for so much CPU."""
    status: dict[str, Any] = {"phase": "Running", "conditions": list(conditions)}
    if allocated:
        set_aside = {"cpu": allocated, "memory": "1Gi"}
        requests = {"cpu": runs_with, "memory": "1Gi"}
        running = {"allocatedResources": set_aside, "resources": {"requests": requests}}
        status["containerStatuses"] = [{"name": "c"} | running]
    meta = {"name": "a", "namespace": "d", "uid": "u"}
    container = {"name": "c", "resources": {"requests": {"cpu": spec, "memory": "1Gi"}}}
    whole = {"metadata": meta, "spec": {"nodeName": "n", "containers": [container]}}
    return msgspec.convert({**whole, "status": status}, Pod)


def held_milli(*pods: Pod) -> list[int]:
    """Thousandths of a core that the ledger holds for the pod after each of these states."""
    account = Account()
    held = []
    for one in pods:
        account.take(one)
        held.append(account.all()["u"].cpu_milli)
        assert account.all()["u"].memory_mib == 1024
    return held


def test_what_a_pod_gives_back_is_held_until_its_node_has_it() -> None:
    shrinks = [pod("4", "4", "4"), pod("1", "4", "4"), pod("1", "1", "4"), pod("1", "1", "1")]
    assert held_milli(*shrinks) == [4000, 4000, 4000, 1000]


def test_what_a_pod_asks_for_beyond_that_is_held_at_once() -> None:
    grows = [pod("1", "1", "1"), pod("4", "1", "1"), pod("4", "4", "1"), pod("4", "4", "4")]
    assert held_milli(*grows) == [1000, 4000, 4000, 4000]


@pytest.mark.parametrize(("condition", "held"), [(DEFERRED, 4000), (REFUSED, 1000)])
def test_what_its_node_can_never_give_is_not_held(condition: dict[str, str], held: int) -> None:
    assert held_milli(pod("4", "1", "1"), pod("4", "1", "1", condition)) == [4000, held]


def test_a_status_that_cannot_be_read_counts_as_nothing() -> None:
    assert held_milli(pod("2", "1", "?"), pod("2", "1", "-3")) == [2000, 2000]


def test_other_changes_of_its_status_are_not_looked_into() -> None:
    account = Account().take(pod("1"))
    assert account.view.update(pod("1", "1", "1000m")) is None
    assert account.all()["u"].cpu_milli == 1000
