"""The API server as it fails in clusters: restarts, cut watches, lost history, answers too late.

And what is taken away while it is being bound. After each: every pod that exists and fits is
bound, no card is over, and the process that lived through it still does its work.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api_proxy import ApiProxy, When
from control_plane import ControlPlane
from kube_api import Object, Objects
from weft_process import (
    ALONE,
    CARD_MIB,
    CARDS,
    EXTENDER,
    GFD,
    Weft,
    all_bound,
    audited,
    bound,
    extender_config,
    nodes,
    pod,
    resources,
    weft,
)

from weft.kube.watch import WatchOptions

BURST, BURST_NODES = 200, 7
GPU_MEM = "aliyun.com/gpu-mem"
BIND, WATCH = "/binding", "watch=1"
CARD_GIB = CARD_MIB // 1024


@pytest.fixture
def proxy(control_plane: ControlPlane, namespace: str) -> Iterator[ApiProxy]:
    with ApiProxy(control_plane) as running:
        yield running


def burst(scheduler: str, count: int, first: int = 0) -> Objects:
    """So many pods of 1 GiB."""
    return [pod(f"p-{i}", scheduler, {GPU_MEM: 1}) for i in range(first, first + count)]


def slowly(tmp_path: Path) -> tuple[str, str]:
    """Options for a Weft that makes 100 requests a second: a burst is always under way."""
    path = tmp_path / "weft.yaml"
    path.write_text(
        "apiVersion: weft.dev/v1\nkind: WeftConfiguration\nclient: {qps: 100, burst: 20}\n"
    )
    return "--config", str(path)


def at_least(count: int) -> Callable[[Objects], bool]:
    """Makes the question whether so many pods have a node."""
    return lambda pods: bound(pods) >= count


def still_works(
    plane: ControlPlane, namespace: str, process: Weft, count: int, timeout_s: float = 40
) -> None:
    """All are bound, none over; and one more pod is, too."""
    try:
        plane.api.wait_for(all_bound(count), "Pod", namespace, timeout_s=timeout_s)
    except TimeoutError as error:
        waiting = [one for one in plane.api.list("Pod", namespace) if not bound([one])]
        told = [(w["spec"]["schedulerName"], w["metadata"]["name"], w["status"]) for w in waiting]
        raise AssertionError(f"{len(told)} wait, such as {told[:2]}; {process.said}") from error
    plane.create_pods(namespace, [pod("one-more", "weft", {GPU_MEM: 1})])
    plane.api.wait_for(all_bound(count + 1), "Pod", namespace, timeout_s=timeout_s)
    used = sum(audited(plane, namespace).table.memory_used)
    asked = sum(
        int(one["spec"]["containers"][0]["resources"]["limits"][GPU_MEM])
        for one in plane.api.list("Pod", namespace)
    )
    assert used == asked * 1024
    assert process.running
    assert "Traceback" not in process.said


@pytest.mark.parametrize("gracefully", [True, False], ids=["gracefully", "killed"])
def test_the_api_server_restarts_in_a_burst(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, gracefully: bool
) -> None:
    """Half of the burst by schedulerName, half through kube-scheduler, 89 % of what there is."""
    nodes(control_plane, BURST_NODES)
    control_plane.create_pods(namespace, burst("weft", BURST // 2))
    control_plane.create_pods(namespace, burst("default-scheduler", BURST // 2, BURST // 2))
    with weft(control_plane, tmp_path, ALONE, *EXTENDER, *slowly(tmp_path)) as process:
        control_plane.start_scheduler(extender_config(process.url, "gpushare"))
        control_plane.api.wait_for(at_least(BURST // 10), "Pod", namespace)
        assert bound(control_plane.api.list("Pod", namespace)) < BURST, (
            "the burst was over before the fault"
        )
        control_plane.restart_apiserver(gracefully=gracefully)
        still_works(control_plane, namespace, process, BURST, timeout_s=60)


def test_watches_are_cut_in_a_burst(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, proxy: ApiProxy
) -> None:
    """Every watch, as often as it may fail in a row; they go on where they were, without another
    list. One of them nobody waits for at the start: that of the agents' heartbeats."""
    nodes(control_plane, BURST_NODES)
    control_plane.create_pods(namespace, burst("weft", BURST))
    options = (ALONE, *slowly(tmp_path))
    with weft(control_plane, tmp_path, *options, kubeconfig=proxy.kubeconfig) as process:
        proxy.until_answered("GET", "/leases?watch=1")
        lists = proxy.codes("GET", "limit=").total()
        cuts = WatchOptions().failures_to_list - 1
        for share in range(1, cuts + 1):
            control_plane.api.wait_for(at_least(share * BURST // (cuts + 1)), "Pod", namespace)
            proxy.cut(WATCH)
        still_works(control_plane, namespace, process, BURST)
        assert proxy.codes("GET", "limit=").total() == lists


def test_history_is_lost_while_weft_stands_still(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, proxy: ApiProxy
) -> None:
    """Its version is 410 when it wakes. Meanwhile pods came, went, and were bound by another."""
    nodes(control_plane, 2)
    before = burst("weft", 8)
    with weft(control_plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig) as process:
        control_plane.create_pods(namespace, before)
        control_plane.api.wait_for(all_bound(8), "Pod", namespace)
        process.pause()
        for index in range(4):
            control_plane.api.delete("Pod", f"p-{index}", namespace)
        foreign = pod("foreign", "somebody", {GPU_MEM: CARD_GIB})
        (made,) = control_plane.create_pods(namespace, [foreign])
        free = node_with_an_idle_card(control_plane, namespace)
        marks = {
            "ALIYUN_COM_GPU_MEM_IDX": str(free[1]),
            "ALIYUN_COM_GPU_MEM_POD": str(CARD_GIB),
            "ALIYUN_COM_GPU_MEM_DEV": str(CARD_GIB),
        }
        control_plane.api.bind(made, free[0], marks)
        control_plane.create_pods(namespace, burst("weft", 40, 8))
        lists = proxy.codes("GET", "/pods?limit=").total()
        control_plane.compact_etcd()
        process.resume()
        still_works(control_plane, namespace, process, 4 + 1 + 40)
        assert proxy.codes("GET", "/pods?limit=").total() > lists, "it has not listed again"


def node_with_an_idle_card(plane: ControlPlane, namespace: str) -> tuple[str, int]:
    """A node's name and the index of a card that nobody has."""
    table = audited(plane, namespace).table
    row = next(row for row, used in enumerate(table.memory_used) if not used)
    node = table.nodes[row // CARDS]
    return node.name, node.gpus[row % CARDS].index


@pytest.mark.parametrize("form", ["alone", "extender"])
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
def test_a_pod_is_deleted_while_it_is_bound(
    control_plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    proxy: ApiProxy,
    form: str,
    again: bool,
) -> None:
    """Its card is free again: the next pod needs all of it. A namesake is another pod."""
    nodes(control_plane, 1)
    scheduler = "weft" if form == "alone" else "default-scheduler"
    cards = [pod(f"card-{i}", scheduler, {GPU_MEM: CARD_GIB}) for i in range(CARDS)]
    held = proxy.hold("POST", BIND, "before")
    options = (ALONE, *EXTENDER)
    with weft(control_plane, tmp_path, *options, kubeconfig=proxy.kubeconfig) as process:
        if form == "extender":
            control_plane.start_scheduler(extender_config(process.url, "gpushare"))
        control_plane.create_pods(namespace, cards[:1])
        held.wait()
        control_plane.api.delete("Pod", "card-0", namespace)
        control_plane.create_pods(namespace, cards[1:])
        if again:
            control_plane.create_pods(namespace, cards[:1])
        held.release()
        left = CARDS if again else CARDS - 1
        control_plane.api.wait_for(all_bound(left), "Pod", namespace, timeout_s=20)
        control_plane.create_pods(namespace, [] if again else cards[:1])
        control_plane.api.wait_for(all_bound(CARDS), "Pod", namespace, timeout_s=20)
        assert list(audited(control_plane, namespace).table.memory_used) == [CARD_MIB] * CARDS
        assert process.running


@pytest.mark.parametrize("form", ["alone", "extender"])
def test_a_pod_is_deleted_after_it_was_bound_and_before_that_is_known(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, proxy: ApiProxy, form: str
) -> None:
    nodes(control_plane, 1)
    scheduler = "weft" if form == "alone" else "default-scheduler"
    held = proxy.hold("POST", BIND, "after")
    options = (ALONE, *EXTENDER)
    with weft(control_plane, tmp_path, *options, kubeconfig=proxy.kubeconfig) as process:
        if form == "extender":
            control_plane.start_scheduler(extender_config(process.url, "gpushare"))
        control_plane.create_pods(namespace, [pod("first", scheduler, {GPU_MEM: CARD_GIB})])
        held.wait()
        assert bound(control_plane.api.list("Pod", namespace)) == 1
        control_plane.api.delete("Pod", "first", namespace)
        held.release()
        cards = [pod(f"card-{i}", scheduler, {GPU_MEM: CARD_GIB}) for i in range(CARDS)]
        control_plane.create_pods(namespace, cards)
        control_plane.api.wait_for(all_bound(CARDS), "Pod", namespace, timeout_s=20)
        assert list(audited(control_plane, namespace).table.memory_used) == [CARD_MIB] * CARDS
        assert process.running


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_node_is_deleted_while_pods_are_bound_to_it(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, proxy: ApiProxy, when: When
) -> None:
    """The API server does not mind: it binds to a node that is missing. Such a pod holds nothing
    until its node is back. What is decided once Weft knows goes elsewhere.
    """
    nodes(control_plane, 1)
    held = proxy.hold("POST", BIND, when, count=4)
    with weft(control_plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig) as process:
        control_plane.create_pods(namespace, burst("weft", 4))
        held.wait(count=4)
        control_plane.api.delete("Node", "node-0")
        control_plane.create_fake_node(**node("node-9"))
        control_plane.create_pods(namespace, [only_on("node-9")])
        held.release()
        control_plane.api.wait_for(all_bound(5), "Pod", namespace, timeout_s=20)
        # Nodes come in order: it has seen node-0 go before it saw node-9 come.
        control_plane.create_pods(namespace, burst("weft", 12, 4))
        control_plane.api.wait_for(all_bound(17), "Pod", namespace, timeout_s=20)
        on = [one["spec"]["nodeName"] for one in control_plane.api.list("Pod", namespace)]
        assert on.count("node-9") >= 13
        control_plane.create_fake_node(**node("node-0"))
        still_works(control_plane, namespace, process, 17)


def only_on(name: str) -> Object:
    """A pod of 1 GiB that may run on this node alone."""
    found = pod("chosen", "weft", {GPU_MEM: 1})
    found["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
    return found


def node(name: str) -> Object:
    """The arguments of `create_fake_node` for one more node like the others."""
    return {"name": name, "allocatable": resources(), "labels": GFD}


def test_a_binding_that_comes_too_late_is_void(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, proxy: ApiProxy
) -> None:
    """The binding stands in the network until Weft has given it up and decided anew, with one card
    less."""
    nodes(control_plane, 1)
    late = proxy.hold("POST", "/pods/late" + BIND, "before")
    looked = proxy.hold("GET", "/pods/late", "before")
    with weft(control_plane, tmp_path, ALONE, kubeconfig=proxy.kubeconfig) as process:
        control_plane.create_pods(namespace, [pod("late", "weft", {GPU_MEM: 1})])
        late.wait()
        looked.wait()
        anew = proxy.hold("POST", "/pods/late" + BIND, "before")
        looked.release()
        anew.wait()
        late.release()
        proxy.until_answered("POST", "/pods/late" + BIND)
        assert proxy.codes("POST", "/pods/late" + BIND) == {409: 1}
        assert bound(control_plane.api.list("Pod", namespace)) == 0
        anew.release()
        still_works(control_plane, namespace, process, 1)
        assert proxy.codes("POST", "/pods/late" + BIND)[201] == 1


def test_the_api_server_stands_still(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Its sockets are open and nobody answers, for longer than Weft waits for an answer."""
    nodes(control_plane, BURST_NODES)
    control_plane.create_pods(namespace, burst("weft", BURST))
    with weft(control_plane, tmp_path, ALONE, *slowly(tmp_path)) as process:
        control_plane.api.wait_for(at_least(BURST // 10), "Pod", namespace)
        control_plane.api_server.pause()
        wakes = threading.Timer(5.0, control_plane.api_server.resume)
        wakes.start()
        still_works(control_plane, namespace, process, BURST, timeout_s=60)
        wakes.join()
