"""Pods whose cards NVIDIA's device plugin chose, with time slicing, MPS or neither.

They are charged what the node's agent tells of them, whoever bound them.
"""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kai_world import shown
from live_world import CARD_MIB, anew, refusals, until, world
from live_world import pod as ours
from long_form import few_or_many
from plugin_world import (
    CARDS,
    NOTHING,
    QUARTER,
    WHOLE,
    PluginAccount,
    Told,
    asking,
    shared,
    telling,
)

from fakes.api_clock import VirtualClock
from weft.cluster.adoption.account import account_of
from weft.cluster.reading.promises import promises
from weft.cluster.reading.reading import HowToRead
from weft.cluster.snapshot.anonymous import Marks
from weft.cluster.snapshot.pseudonyms import Pseudonyms
from weft.cluster.state.others import others_on
from weft.kube.structs import KubeNode
from weft.model.plugin_gpus import GivenGpu, PluginGpus, decode_plugin_gpus

GPU = "nvidia.com/gpu"


def account(told: Told | None, *pods: dict[str, Any], replicas: int = 4) -> PluginAccount:
    made = PluginAccount(told, replicas)
    made.take(*map(shown, pods))
    return made


@pytest.mark.parametrize("ask", [asking, shared])
def test_a_pod_is_charged_its_part_of_the_card_that_the_agent_names(ask: Any) -> None:
    made = account({"p": [(1, 1, 4)]}, ask("p"))
    assert made.used() == [NOTHING, QUARTER, NOTHING]
    assert (made.view.assumed, made.view.doubts) == ({}, {})
    told = "has 1/4 of GPU 1 by NVIDIA's device plugin, as its node's agent reports"
    assert made.view.told == {"p": told}
    assert made.view.unsure("p")  # nobody is evicted for it
    (share,) = others_on(made.view, "n")
    assert (share.gpu, share.is_sure, share.memory_mib) == (1, True, CARD_MIB // 4)
    assert share.text.endswith("by what its node's agent reports of NVIDIA's device plugin")
    made.forget(shown(ask("p")))
    assert made.used() == [NOTHING] * CARDS
    assert made.view.told == {}


def test_several_devices_of_a_card_and_of_several_cards() -> None:
    told: Told = {"p": [(0, 3, 4), (2, 1, 4)], "q": [(0, 1, 4)]}
    made = account(told, shared("p", 4), shared("q"))
    assert made.used() == [WHOLE, NOTHING, QUARTER]


def test_parts_are_rounded_down_so_that_all_of_a_card_are_at_most_the_card() -> None:
    told: Told = {str(pod): [(0, 1, 7)] for pod in range(7)}
    made = account(told, *(shared(str(pod)) for pod in range(7)), replicas=7)
    assert CARD_MIB % 7
    assert made.used()[0] == (7 * (CARD_MIB // 7), 7 * 142)
    assert account({"p": [(0, 7, 7)]}, shared("p", 7), replicas=7).used()[0] == WHOLE


def test_an_undivided_card_is_where_the_kubelet_says() -> None:
    made = account({"p": [(0, 1, 1)]}, asking("p"), replicas=1)
    assert made.used() == [WHOLE, NOTHING, NOTHING]
    assert "has GPU 0 by" in made.view.told["p"]


def test_without_word_of_it_a_pod_is_charged_as_every_stranger() -> None:
    made = account(None, asking("p"))
    assert made.used() == [NOTHING, NOTHING, WHOLE]
    assert "last idle cards" in made.view.assumed["p"]
    made = account({"another": [(0, 1, 4)]}, shared("p"))
    assert made.used() == [QUARTER] * CARDS
    assert "on every card" in made.view.assumed["p"]
    assert account(None, shared("p"), replicas=1).used() == [NOTHING, NOTHING, WHOLE]
    assert account(None, shared("p", 9)).used() == [WHOLE] * CARDS


def test_the_number_of_replicas_follows_from_what_the_node_has_where_no_label_says() -> None:
    made = PluginAccount(None)
    node = telling(None)
    del node["metadata"]["labels"]["nvidia.com/gpu.replicas"]
    made.shows_node(node)
    made.take(shown(shared("p")))
    assert made.used() == [QUARTER] * CARDS


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"p": [(0, 2, 4)]}, "reports 2 devices, but the pod requests 1"),
        ({"p": [(0, 1, 4), (1, 1, 4)]}, "reports 2 devices, but the pod requests 1"),
        ({"p": [(7, 1, 4)]}, "names GPU-7, which the node does not show"),
    ],
)
def test_what_cannot_be_is_named_and_charged_as_if_nobody_had_told(
    told: Told, problem: str
) -> None:
    made = PluginAccount({})
    made.take(shown(shared("p")))
    cards = [f"GPU-{card}" for card in range(8)]
    text = msgspec.json.encode({"cards": cards, "pods": told}).decode()
    node = telling({}, **{"weft.dev/plugin-gpus": text})
    made.shows_node(node)
    assert made.used() == [QUARTER] * CARDS
    (doubt,) = made.view.doubts["p"]
    assert (doubt.reason, doubt.unsure) == ("PluginGPUsDoubted", True)
    assert problem in doubt.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"cards":["GPU-0"],"pods":{"p":[[1,1,4]]}}',
        '{"cards":["GPU-0"],"pods":{"p":[[0,5,4]]}}',
        '{"cards":["GPU-0"],"pods":{"p":[[0,0,4]]}}',
        '{"cards":["GPU-0"],"pods":{"p":[[0,1,4],[0,1,4]]}}',
        '{"cards":["GPU-0","GPU-0"],"pods":{}}',
        '{"cards":["GPU-0"],"pods":{"p":[[0,1,99999999]]}}',
    ],
)
def test_a_text_that_nobody_can_read_is_a_warning(text: str) -> None:
    made = PluginAccount({"p": [(0, 1, 4)]})
    made.take(shown(shared("p")))
    node = telling({}, **{"weft.dev/plugin-gpus": text})
    made.shows_node(node)
    assert "weft.dev/plugin-gpus" in made.nodes.warnings["n"][0]
    assert made.used() == [QUARTER] * CARDS


def test_news_that_come_after_the_pod_move_its_charge_and_free_nothing_before() -> None:
    made = account({}, shared("p"), shared("q"))
    assert made.used() == [(2 * CARD_MIB // 4, 500)] * CARDS
    made.tells({"p": [(0, 1, 4)], "q": [(0, 1, 4)]})
    assert made.used() == [(2 * CARD_MIB // 4, 500), NOTHING, NOTHING]
    made = account(None, asking("p"))
    assert made.used() == [NOTHING, NOTHING, WHOLE]
    made.tells({"p": [(0, 1, 4)]})
    assert made.used() == [QUARTER, NOTHING, NOTHING]
    made.tells(None)  # the agent's words are gone
    assert made.used() == [NOTHING, NOTHING, WHOLE]


def test_another_pod_of_that_name_is_another_pod() -> None:
    made = account({"p": [(0, 1, 4)]}, shared("p"))
    later = shared("p")
    later["metadata"]["uid"] = "later"
    made.forget(shown(shared("p")))
    made.take(shown(later))
    assert made.used() == [QUARTER] * CARDS
    assert "later" in made.view.assumed


def test_what_the_agent_tells_of_others_pods_changes_nothing() -> None:
    """Pods that Weft placed have their marks; those of other systems theirs, or none."""
    weft = shown(asking("w", 500, by="weft.dev/gpu-memory"))
    hami = shown(asking("h", by="nvidia.com/gpumem"))
    plain = shown(asking("c", by="cpu"))
    told: Told = {name: [(0, 1, 1)] for name in ("w", "h", "c")}
    made, without = account(told), account(None)
    for each in (weft, hami, plain):
        made.take(each)
        without.take(each)
    assert made.used() == without.used()
    assert made.view.told == {}


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, dict[str, list[tuple[int, int, int]]]]:
    """The number of replicas, and pods with some of the free devices."""
    replicas = draw(st.integers(1, 9))
    free = [replicas] * CARDS
    pods: dict[str, list[tuple[int, int, int]]] = {}
    for number in range(draw(st.integers(0, 6))):
        held = []
        for card in range(CARDS):
            if devices := draw(st.integers(0, free[card])):
                free[card] -= devices
                held.append((card, devices, replicas))
        if held:
            pods[f"p{number}"] = held
    return replicas, pods


@given(made=worlds(), data=st.data())
@settings(max_examples=few_or_many(60, 1_000), deadline=None)
def test_whatever_comes_first_the_account_is_the_sum_of_parts(made: Any, data: Any) -> None:
    replicas, pods = made
    name = GPU if replicas == 1 else data.draw(st.sampled_from([GPU, "nvidia.com/gpu.shared"]))
    seen = PluginAccount(None, replicas)
    shows = {
        uid: shown(asking(uid, sum(devices for _, devices, _ in held), by=name))
        for uid, held in pods.items()
    }
    events = data.draw(st.permutations([*pods, *(("tell", uid) for uid in pods), ("restart", "")]))
    told: dict[str, list[tuple[int, int, int]]] = {}
    for event in events:
        if isinstance(event, str):
            seen.take(shows[event])
        elif event[0] == "tell":
            told[event[1]] = pods[event[1]]
            seen.tells(dict(told))
        else:
            seen.tells(dict(told) or None)
    ended = data.draw(st.sets(st.sampled_from(sorted(pods)))) if pods else set()
    for uid in sorted(ended):
        seen.forget(shows[uid])
    left = [held for uid, held in pods.items() if uid not in ended]
    restated = []
    for card in range(CARDS):
        parts = [part for part in itertools.chain(*left) if part[0] == card]
        mib = sum(CARD_MIB * devices // of for _, devices, of in parts)
        restated.append((mib, sum(1000 * devices // of for _, devices, of in parts)))
    assert seen.used() == restated
    assert all(mib <= CARD_MIB and milli <= 1000 for mib, milli in seen.used())
    assert (seen.view.assumed, seen.view.doubts) == ({}, {})


def used(made: Any) -> list[int]:
    return [int(mib) for mib in made.live.engine.ledger.table.memory_used]


async def test_weft_places_beside_replicas_and_evicts_nobody_for_them() -> None:
    async with world(telling(None, 1)) as made:
        made.server.add("pods", ours("first", CARD_MIB))
        await until(lambda: made.server.get("pods", "first", "d")["spec"].get("nodeName"))
        made.server.add("pods", shared("p"))
        await until(lambda: used(made) == [CARD_MIB + CARD_MIB // 4])
        told = telling({made.uid("p"): [(0, 1, 4)]}, 1)["metadata"]["annotations"]
        made.server.update("nodes", "n", {"metadata": {"annotations": told}})
        await until(lambda: made.live.pods.told)
        made.parts.guard.check()
        assert made.parts.guard._tasks == {}
        made.server.remove("pods", "first", "d")
        await until(lambda: used(made) == [CARD_MIB // 4])
        refused = refusals(made)
        made.server.add("pods", ours("all", CARD_MIB))
        await until(lambda: "all" in refused)
        made.server.add("pods", ours("rest", CARD_MIB - CARD_MIB // 4))
        await until(lambda: made.server.get("pods", "rest", "d")["spec"].get("nodeName"))
        await anew(made)
        assert used(made) == [CARD_MIB]
        assert "POST pods/eviction" not in made.server.requests


def test_inspect_and_adopt_show_what_the_agent_tells() -> None:
    pods = [shown(asking("p")), shown(shared("q", 2)), shown(shared("untold"))]
    node = msgspec.convert(telling({"p": [(1, 1, 4)], "q": [(1, 2, 4)]}), KubeNode)
    how = HowToRead()
    (report,), _ = promises([node], pods, how)
    held = [(pod.name, pod.by, pod.memory_mib, pod.milli) for pod in report.gpus[1].pods]
    quarter, half = CARD_MIB // 4, CARD_MIB // 2
    assert held == [("p", "agent", quarter, 250), ("q", "agent", half, 500)]
    assert (report.gpus[1].promised_mib, report.gpus[0].pods) == (quarter + half, [])
    assert report.unplaced == ["d/untold"]
    others = report.gpus[1].pods[0].placed_by_others
    assert others is not None
    assert (others.is_sure, "node's agent" in others.evidence) == (True, True)
    adopted = account_of([node], [], pods, how, VirtualClock())
    states = [(pod.name, pod.state, sorted(s.gpu for s in pod.shares)) for pod in adopted.pods]
    assert states == [
        ("p", "adopted", [1]),
        ("q", "adopted", [1]),
        ("untold", "ambiguous", [0, 1, 2]),
    ]


def test_a_snapshot_without_names_tells_the_same() -> None:
    names = Pseudonyms((), (), ())
    text = '{"cards":["GPU-1","MIG-2"],"pods":{"uid-p":[[1,1,4]]}}'
    assert Marks(names).renamed({"weft.dev/plugin-gpus": text}) == {"weft.dev/plugin-gpus": text}
    names.allot()
    renamed = Marks(names).renamed({"weft.dev/plugin-gpus": text})["weft.dev/plugin-gpus"]
    assert decode_plugin_gpus(renamed) == PluginGpus(
        (names.gpu("GPU-1"), names.gpu("MIG-2")), {names.uid("uid-p"): (GivenGpu(1, 1, 4),)}
    )
    assert "uid-p" not in renamed
    assert Marks(names).renamed({"weft.dev/plugin-gpus": "x"}) == {
        "weft.dev/plugin-gpus": "damaged"
    }
