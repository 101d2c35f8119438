"""kill -9 at every point between a decision and the engine's knowing what became of it.

Then a new process, which has nothing but the API's objects. Every pod must get its place, the GPUs
must be full to the last GiB and not one over, and no pod may have been bound twice.
"""

import contextlib
import signal
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_proxy import ApiProxy, Held, When
from control_plane import ControlPlane
from kube_api import Objects
from processes import free_ports
from weft_process import (
    ALONE,
    CARD_MIB,
    CARDS,
    EXTENDER,
    Weft,
    all_bound,
    audited,
    bound,
    extender_config,
    nodes,
    pod,
    sigkill,
    starting,
    weft,
)

NODES, PODS = 2, 16
BIND = "/binding"
LISTS = {"nodes": "/api/v1/nodes?", "pods": "/api/v1/pods?"}


@pytest.fixture
def proxy(control_plane: ControlPlane, namespace: str) -> Iterator[ApiProxy]:
    nodes(control_plane, NODES)
    with ApiProxy(control_plane) as running:
        yield running


def pods(scheduler: str = "weft") -> Objects:
    """Together they are all there is of GPU memory."""
    size = CARD_MIB * CARDS * NODES // PODS // 1024
    return [pod(f"p-{i}", scheduler, {"aliyun.com/gpu-mem": size}) for i in range(PODS)]


def all_is_well(plane: ControlPlane, namespace: str, proxy: ApiProxy) -> None:
    """All bound, each once, every card full."""
    plane.api.wait_for(all_bound(PODS), "Pod", namespace, timeout_s=40)
    ledger = audited(plane, namespace)
    assert sorted(ledger.table.memory_used) == [CARD_MIB] * (NODES * CARDS)
    deadline = time.monotonic() + 20  # the watch may be ahead of the answer
    while proxy.codes("POST", BIND)[201] < PODS and time.monotonic() < deadline:
        time.sleep(0.01)
    assert proxy.codes("POST", BIND)[201] == PODS


def before_it_leaves(process: Weft, held: Held) -> None:
    held.wait(count=4)
    sigkill(process)
    held.drop()


def after_it_is_done(process: Weft, held: Held) -> None:
    """The server has committed; nobody has read the answer."""
    held.wait(count=4)
    sigkill(process)
    held.drop()


def after_the_answer_came(process: Weft, held: Held) -> None:
    """The answer is in the process's socket; the engine has not heard of it."""
    held.wait(count=4)
    process.pause()
    held.release()
    held.wait_answered(count=4)
    sigkill(process)


CRASHES: dict[str, tuple[When, Callable[[Weft, Held], None]]] = {
    "before the POST leaves": ("before", before_it_leaves),
    "before the answer is read": ("after", after_it_is_done),
    "before the engine learns": ("after", after_the_answer_came),
}


@pytest.mark.parametrize("form", ["alone", "extender"])
@pytest.mark.parametrize("point", CRASHES)
def test_kill_9_around_a_binding(
    control_plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    tmp_path: Path,
    point: str,
    form: str,
) -> None:
    when, crash = CRASHES[point]
    held = proxy.hold("POST", BIND, when, count=4, skip=2)
    scheduler = "weft" if form == "alone" else "default-scheduler"
    (port,) = free_ports(1)
    options = (ALONE, "--extender-port", str(port), "--extender-address", "127.0.0.1")
    with weft(control_plane, tmp_path, *options, kubeconfig=proxy.kubeconfig) as first:
        if form == "extender":
            control_plane.start_scheduler(extender_config(first.url, "gpushare"))
        control_plane.create_pods(namespace, pods(scheduler)[:12])
        crash(first, held)
    if when == "after":
        assert bound(control_plane.api.list("Pod", namespace)) >= 4
    with weft(control_plane, tmp_path, *options, kubeconfig=proxy.kubeconfig):
        control_plane.create_pods(namespace, pods(scheduler)[12:])
        all_is_well(control_plane, namespace, proxy)


@pytest.mark.parametrize("listed", LISTS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_9_during_the_first_sync(
    control_plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    tmp_path: Path,
    listed: str,
    when: When,
) -> None:
    """Half of the pods are bound by then; nothing may be decided from half a picture."""
    half = pods()[: PODS // 2]
    with weft(control_plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig) as first:
        control_plane.create_pods(namespace, half)
        control_plane.api.wait_for(all_bound(len(half)), "Pod", namespace, timeout_s=20)
        first.wait_ready(lambda: proxy.codes("POST", BIND)[201] == len(half))
    control_plane.create_pods(namespace, pods()[PODS // 2 :])
    held = proxy.hold("GET", LISTS[listed], when)
    second = starting(control_plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig)
    held.wait()
    sigkill(second)
    held.drop()
    assert bound(control_plane.api.list("Pod", namespace)) == len(half)
    with weft(control_plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig):
        all_is_well(control_plane, namespace, proxy)


def closed(url: str) -> bool:
    """Tells whether nobody listens there any more."""
    where = urllib.parse.urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((where.hostname, where.port), 2):
        return False
    return True


def test_kill_9_while_it_drains(
    control_plane: ControlPlane, namespace: str, proxy: ApiProxy, tmp_path: Path
) -> None:
    """Told to stop, it waits for answers that the server has given and nobody delivers."""
    held = proxy.hold("POST", BIND, "after", count=4)
    with weft(control_plane, tmp_path, ALONE, *EXTENDER, kubeconfig=proxy.kubeconfig) as first:
        url = first.url
        control_plane.create_pods(namespace, pods()[:8])
        held.wait(count=4)
        first.tell(signal.SIGTERM)
        first.wait_ready(lambda: closed(url))
        control_plane.create_pods(namespace, pods()[8:])
        assert first.running, "it ended without waiting for what it had sent"
        sigkill(first)
        held.drop()
    assert bound(control_plane.api.list("Pod", namespace)) <= 8, "it decided while it drained"
    with weft(control_plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig):
        all_is_well(control_plane, namespace, proxy)


def test_sigterm_finishes_what_is_being_written(
    control_plane: ControlPlane, namespace: str, proxy: ApiProxy, tmp_path: Path
) -> None:
    """And gives the lease back, so that the next process need not wait."""
    held = proxy.hold("POST", BIND, "before", count=8)
    with weft(control_plane, tmp_path, *EXTENDER, kubeconfig=proxy.kubeconfig) as first:
        url = first.url
        control_plane.create_pods(namespace, pods()[:8])
        held.wait(count=8)
        first.tell(signal.SIGTERM)
        first.wait_ready(lambda: closed(url))
        held.release()
        assert first.exit_code() == 0
    assert bound(control_plane.api.list("Pod", namespace)) == 8
    with weft(control_plane, tmp_path, kubeconfig=proxy.kubeconfig):
        control_plane.create_pods(namespace, pods()[8:])
        all_is_well(control_plane, namespace, proxy)
