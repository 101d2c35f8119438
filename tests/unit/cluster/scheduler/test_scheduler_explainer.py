"""The scheduler asked by a process that goes on, as the console is: few questions, no waiting."""

from pathlib import Path

import pytest
from scheduler_world import World, add_node, add_pod, world

from weft.cli.console import _scheduler_of
from weft.cluster.scheduler.explain_client import SchedulerExplainer
from weft.core.explain.explanation import ObservedProgress, ResidentSlowdown
from weft.kube.client import Endpoint, FixedCredentials
from weft.model import BadInputError

SERVICE = "weft-system/weft-scheduler:10259"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def leads(cluster: World, port: int) -> None:
    """Show a pod of the scheduler that leads, and answers on this port of this machine."""
    meta = {"name": "weft-scheduler-0", "labels": {"weft.dev/role": "leader"}}
    ports = [{"name": "http", "containerPort": port}]
    spec = {"containers": [{"name": "scheduler", "ports": ports}]}
    status = {"phase": "Running", "podIP": "127.0.0.1"}
    cluster.server.add("pods", {"metadata": meta, "spec": spec, "status": status}, "weft-system")


def explainer(cluster: World, folder: Path, clock: Clock) -> SchedulerExplainer:
    token = folder / "token"
    token.write_text("a.token.of-the-pod\n")
    here = Endpoint(cluster.server.url, FixedCredentials())
    return SchedulerExplainer(here, SERVICE, token, clock)


async def test_it_says_what_weft_explain_says_and_holds_for_a_moment(tmp_path: Path) -> None:
    clock = Clock()
    async with world() as cluster:
        add_node(cluster.server, "n", gpus=1)
        beside, uid = (add_pod(cluster.server, name, 4_000) for name in ("beside", "p"))
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p") and cluster.bound("beside"))
        cluster.progress[beside] = ObservedProgress("progress", 1.5, 60.0, 90.0)
        leads(cluster, cluster.pages.port)
        ask = explainer(cluster, tmp_path, clock)
        first = await ask.explain("d", "p")
        assert first == await cluster.explain("p")
        assert (first.uid, first.attempt, first.node) == (uid, 1, "n")
        assert first.residents == (ResidentSlowdown("d", "beside", 1.5, "progress"),)
        cluster.progress.clear()
        assert await ask.explain("d", "p") == first, "it is not asked twice at once"
        clock.now_s = 3
        assert (await ask.explain("d", "p")).residents == ()
        with pytest.raises(BadInputError, match="no pod d/nobody"):
            await ask.explain("d", "nobody")
        assert (await ask.explain("d", "p")).uid == uid, "a pod that is not there is no failure"


async def test_a_scheduler_that_is_not_there_is_left_alone_for_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    async with world() as cluster:
        add_node(cluster.server, "n")
        add_pod(cluster.server, "p", 4_000)
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p"))
        ask = explainer(cluster, tmp_path, clock)
        for _ in range(3):
            with pytest.raises(BadInputError, match="no pod of weft-system is labelled"):
                await ask.explain("d", "p")
        leads(cluster, cluster.pages.port)
        clock.now_s = 59
        with pytest.raises(BadInputError, match="no pod of weft-system is labelled"):
            await ask.explain("d", "p")
        clock.now_s = 61
        assert (await ask.explain("d", "p")).node == "n"


@pytest.mark.parametrize(("inside", "namespace"), [(False, "weft-system"), (True, "team")])
async def test_a_console_outside_asks_the_scheduler_that_weft_explain_asks(
    inside: bool, namespace: str
) -> None:
    """The namespace of a kubeconfig's context is the user's, a pod's own is the release's."""
    async with world() as cluster:
        here = Endpoint(cluster.server.url, FixedCredentials(), namespace="team", inside=inside)
        with pytest.raises(BadInputError, match=f"no pod of {namespace} is labelled"):
            await _scheduler_of(here).explain("d", "p")
