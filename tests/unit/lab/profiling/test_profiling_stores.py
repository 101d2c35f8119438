"""Where profiles are kept: a file, a ConfigMap; and who holds which GPU, as the cluster says."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.interference.dataset import (
    EMPTY,
    CoLocationSample,
    Dataset,
    Feature,
    Infeasible,
    SoloProfile,
    decode,
    encode,
)
from weft.kube.errors import ConflictError
from weft.kube.pods import Pod
from weft.lab.profiling import files, stores
from weft.lab.profiling.bindings import cluster_record
from weft.lab.profiling.solo_samples import NOBODY_KNOWS
from weft.lab.profiling.stores import KEY, ConfigMapStore, FileStore
from weft.model import BadInputError, Gpu, Node

ONE = SoloProfile("a", "T4", "mps", {"sm_active_ratio": Feature(0.5, 0.75)}, 100, 120, 3.5, 3, 9.0)
PAIR = CoLocationSample("a", ("b",), "T4", "mps", 2.0, 0.57, 3)
NEVER = Infeasible(("a", "c"), "T4", "mps", "c", "out-of-memory", "full")
ALL = Dataset(solo=(ONE,), corun=(PAIR,), infeasible=(NEVER,))


def adding(*solos: SoloProfile) -> stores.Change:
    return lambda here: here.merged(Dataset(solo=solos))


def solo(name: str, runs: int = 1) -> SoloProfile:
    return SoloProfile(name, "T4", "mps", runs=runs)


# --- the format ----------------------------------------------------------------------------------


def test_what_is_written_is_read_back_in_a_fixed_order() -> None:
    assert decode(encode(ALL), "here") == EMPTY.merged(ALL)
    mixed = Dataset(solo=(solo("z"), ONE, solo("b")))
    assert [one.application for one in decode(encode(mixed), "here").solo] == ["a", "b", "z"]


def test_of_two_that_speak_of_the_same_the_later_is_right() -> None:
    found = EMPTY.merged(Dataset(solo=(solo("a", 1), solo("b", 1)))).merged(
        Dataset(solo=(solo("a", 2),))
    )
    assert [(one.application, one.runs) for one in found.solo] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "is not an interference dataset"),
        ('{"apiVersion": "weft.dev/v2", "kind": "InterferenceDataset"}', "is weft.dev/v2/"),
        ("{}", "is -/-; this Weft reads apiVersion weft.dev/v1"),
        ('{"apiVersion": "weft.dev/v1", "kind": "InterferenceDataset", "solos": []}', "solos"),
        (
            '{"apiVersion": "weft.dev/v1", "kind": "InterferenceDataset", "solo": [{}]}',
            "application",
        ),
    ],
)
def test_what_is_no_dataset_is_told_in_one_line(body: str, says: str) -> None:
    with pytest.raises(BadInputError, match="here: ") as told:
        decode(body.encode(), "here")
    assert says in str(told.value)


# --- a file --------------------------------------------------------------------------------------


async def test_a_file_keeps_what_was_added(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "deep" / "profiles.json")
    with pytest.raises(BadInputError, match=r"profiles\.json: does not exist"):
        await store.load()
    await store.change(adding(ONE))
    await store.change(adding(solo("b")))
    assert [one.application for one in (await store.load()).solo] == ["a", "b"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["profiles.json"]


async def test_a_file_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot be written"):
        await FileStore(tmp_path / "file" / "below").change(adding(ONE))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read: No such file"):
        files.read(tmp_path / "none.json")


# --- a ConfigMap ---------------------------------------------------------------------------------


@asynccontextmanager
async def on_api() -> AsyncIterator[tuple[FakeApiServer, ConfigMapStore]]:
    async with (
        FakeApiServer() as api,
        client_of(api) as client,
    ):
        yield api, ConfigMapStore(client, "d", "profiles")


async def test_a_config_map_is_made_and_what_others_keep_in_it_stays() -> None:
    async with on_api() as (api, store):
        with pytest.raises(BadInputError, match="ConfigMap d/profiles: does not exist"):
            await store.load()
        await store.change(adding(ONE))
        api.update("configmaps", "profiles", {"data": {"other": "kept"}}, "d")
        await store.change(adding(solo("b")))
        data = api.get("configmaps", "profiles", "d")["data"]
        assert data["other"] == "kept"
        assert [one["application"] for one in json.loads(data[KEY])["solo"]] == ["a", "b"]
        assert (await store.load()).solo[0] == ONE


async def test_who_was_slower_adds_to_what_the_quicker_one_wrote() -> None:
    async with on_api() as (api, store):
        await store.change(adding(ONE))
        calls = 0

        def late(here: Dataset) -> Dataset:
            nonlocal calls
            calls += 1
            if calls == 1:  # somebody writes between our reading and our writing
                other = encode(here.merged(Dataset(solo=(solo("quick"),)))).decode()
                api.update("configmaps", "profiles", {"data": {KEY: other}}, "d")
            return here.merged(Dataset(solo=(solo("slow"),)))

        await store.change(late)
        assert calls == 2
        assert [one.application for one in (await store.load()).solo] == ["a", "quick", "slow"]


async def test_who_is_always_slower_gives_up_with_the_servers_word() -> None:
    async with on_api() as (api, store):
        await store.change(adding(ONE))
        calls = 0

        def late(here: Dataset) -> Dataset:
            nonlocal calls
            calls += 1
            api.update("configmaps", "profiles", {"data": {"count": str(calls)}}, "d")
            return here

        with pytest.raises(ConflictError):
            await store.change(late)
        assert calls == stores.ATTEMPTS


async def test_too_much_for_a_config_map_is_told_before_it_is_sent() -> None:
    async with on_api() as (_, store):
        with pytest.raises(BadInputError, match="use --file"):
            await store.change(adding(solo("x" * 1_000_000)))
        with pytest.raises(BadInputError, match="does not exist"):
            await store.load()


# --- bindings ------------------------------------------------------------------------------------

NODE = Node("a", (Gpu(0, 16_000, "T4", "GPU-0"), Gpu(1, 16_000, "T4", "")))


def bound(name: str, gpu: int | None, phase: str = "Running", **meta: object) -> Pod:
    limits = {"weft.dev/gpu-memory": "3000"}
    mark = {"pod": name, "node": "a", "shares": [[0, gpu, 3000, 0, ""]]}
    marks = {"weft.dev/placement": json.dumps(mark)} if gpu is not None else {}
    told = {
        "metadata": {
            "name": name,
            "namespace": "d",
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:10Z",
            "annotations": {**marks, **meta},
        },
        "spec": {
            "nodeName": "a",
            "schedulerName": "weft",
            "containers": [{"name": "c", "image": "r/x:1", "resources": {"limits": limits}}],
        },
        "status": {"phase": phase},
    }
    return msgspec.convert(told, Pod)


def test_a_binding_says_card_time_and_application() -> None:
    annotation = {"weft.dev/application": "bert", "weft.dev/isolation": "mps"}
    found = cluster_record([NODE], [bound("p", 0, **annotation), bound("q", 1)])
    assert [
        (residency.pod, residency.card, residency.clues.name(), residency.isolation)
        for residency in found.residencies
    ] == [
        (("d", "p"), ("a", "GPU-0"), "bert", "mps"),
        (("d", "q"), ("a", "1"), "x", ""),
    ]
    assert found.residencies[0].since_s == 1_767_225_610
    assert found.cards["gpu-0"] == found.cards["a/0"] == ("a", "GPU-0")
    assert found.models == {("a", "GPU-0"): "T4", ("a", "1"): "T4"}


def test_a_pod_that_is_over_held_its_gpu_until_then() -> None:
    """The pod is still in the API: who was beside it was not alone."""
    over = bound("over", 0, "Succeeded")
    when = [
        {"state": {"terminated": {"finishedAt": f"2026-01-01T00:0{minute}:00Z"}}}
        for minute in (2, 5, 3)
    ]
    status = msgspec.convert({"phase": "Succeeded", "containerStatuses": when}, type(over.status))
    (residency,) = cluster_record(
        [NODE], [msgspec.structs.replace(over, status=status)]
    ).residencies
    assert (residency.pod, residency.since_s, residency.until_s) == (
        ("d", "over"),
        1_767_225_610,
        1_767_225_900,
    )
    (residency,) = cluster_record([NODE], [over]).residencies
    # Nobody says when: it may have been now, but no share of the GPU is accounted for by it.
    assert (residency.pod, residency.card, residency.until_s) == (
        NOBODY_KNOWS,
        ("a", "GPU-0"),
        math.inf,
    )
    residencies = cluster_record([NODE], [bound("p", None, "Failed")]).residencies
    assert {residency.pod for residency in residencies} == {NOBODY_KNOWS}


def test_a_pod_without_marks_may_be_anywhere_on_its_node() -> None:
    found = cluster_record([NODE], [bound("p", None)])
    assert [(residency.pod, residency.card) for residency in found.residencies] == [
        (NOBODY_KNOWS, ("a", "GPU-0")),
        (NOBODY_KNOWS, ("a", "1")),
    ]
