"""Each moment of a record is what was so then; a cut or edited file is shown up to there."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from long_form import few_or_many
from test_console_picture import check_against_ledger

from weft.console import recorded
from weft.console.history import GpuPoint
from weft.console.picture import Picture
from weft.console.recorded import MOST_MOMENTS, RecordedSource, _picture
from weft.core.engine import NodesChanged, PodAdded, PodBound, PodGone
from weft.core.policies.catalog import built_in
from weft.core.record import DecisionsWriter, Header, PolicyUse, ProfileUse, Recorder, explain
from weft.core.record.passing import RecordedRun
from weft.model import PodRequest
from weft.testing import random_node, random_nodes, random_shape

BEGAN_S, AHEAD_S = 5_000, 1_790_000_000
"""The recording process' own clock, and what leads from it to seconds since 1970."""


class RecordedStory:
    """Random things that happen to an engine whose decisions are recorded; its pictures beside, of
    each moment or `only_last`."""

    def __init__(self, seed: int, path: Path, events: int, *, only_last: bool = False) -> None:
        self.events, self.only_last = 0, only_last
        self.chance = random.Random(seed)
        self.nodes = random_nodes(self.chance, most=5)
        self.shapes = [random_shape(self.chance, self.nodes) for _ in range(12)]
        policy = self.chance.choice(("fgd", "best-fit", "random"))
        header = Header([ProfileUse("weft", [PolicyUse(policy)])])
        self.engine = header.engine(built_in().create)
        self.now_s, self.uids, self.pictures = BEGAN_S, list[str](), list[Picture]()
        with path.open("wb") as out:
            writer = DecisionsWriter(out)
            self.recorder = Recorder(self.engine, header, writer.write)
            self.tell(NodesChanged(tuple(self.nodes)))
            while self.events < events:
                self.step()
            if only_last:
                self.pictures = [self.picture()]
            writer.close()

    def tell(self, event: Any) -> None:
        commands = self.recorder.handle(event, self.now_s * 10**9)
        self.events += 1
        if not self.only_last:
            self.pictures.append(self.picture())
        for command in commands:
            if type(command).__name__ == "Bind":
                self.tell(PodBound(command.pod.uid))

    def picture(self) -> Picture:
        return _picture(self.engine, self.now_s + AHEAD_S, AHEAD_S)

    def step(self) -> None:
        self.now_s += self.chance.randrange(1, 30)
        what = self.chance.random()
        if what < 0.6 or not self.uids:
            uid = f"u{self.events}"
            shape = self.chance.choice(self.shapes)
            created_ns = (self.now_s + AHEAD_S) * 10**9
            self.tell(PodAdded(PodRequest(uid, f"p-{uid}", shape, created_ns=created_ns)))
            self.uids.append(uid)
        elif what < 0.9:
            self.uids.remove(uid := self.chance.choice(self.uids))
            self.tell(PodGone(uid))
        else:
            new = random_node(self.chance, f"n{self.chance.randrange(6)}")
            self.nodes = [node for node in self.nodes if node.name != new.name] + [new]
            self.tell(NodesChanged((new,)))


def source_of(path: Path, policy: str = "") -> RecordedSource:
    def create(name: str, **options: Any) -> Any:
        return built_in().create(policy or name, **options)

    run = RecordedRun(path, create)
    return RecordedSource(run, path.name, lambda name: explain(path, name, create))


def tables(picture: Picture) -> Any:
    """All but what is stranded, which is told by the shapes that came until then."""
    nodes = {
        name: msgspec.structs.replace(node, idle_milli=0, stranded_milli=0)
        for name, node in picture.nodes.items()
    }
    return picture.at_s, nodes, picture.gpus, picture.pods, picture.waiting


@pytest.mark.parametrize("seed", range(few_or_many(4, 60)))
def test_each_moment_is_what_was_so_then_in_any_order(seed: int, tmp_path: Path) -> None:
    story = RecordedStory(seed, path := tmp_path / "day.jsonl", events=60)
    source = source_of(path)
    assert source.record.trouble == ""
    assert source.record.at_s == tuple(picture.at_s for picture in story.pictures)
    numbers = [*range(len(story.pictures))]
    story.chance.shuffle(numbers)
    for number in numbers:
        assert tables(source.at(number)) == tables(story.pictures[number])
    last = source.picture()
    check_against_ledger(last, story.engine)
    kinds = {event.kind for event in last.events.values()}
    assert "bound" in kinds
    for pod in last.pods.values():
        explained = asyncio.run(source.explain(pod.namespace, pod.name))
        assert explained is not None
        assert explained.node == pod.node
    assert asyncio.run(source.explain("default", "nobody")) is None


@pytest.mark.parametrize("seed", range(few_or_many(3, 30)))
def test_a_gpus_history_is_what_its_moments_show(seed: int, tmp_path: Path) -> None:
    RecordedStory(seed, path := tmp_path / "day.jsonl", events=40)
    source = source_of(path)
    moments = [source.at(number) for number in range(len(source.record.at_s))]
    for key in {key for picture in moments for key in picture.gpus}:
        points = source.history(key)
        assert points
        for picture in moments:
            if key in picture.gpus:
                shown = GpuPoint.of(picture.gpus[key], picture.at_s)
                (*_, known) = (point for point in points if point.at_s <= picture.at_s)
                assert msgspec.structs.replace(known, at_s=picture.at_s) == shown
    assert source.history("nowhere/0") == []


def test_a_long_record_has_as_many_moments_as_a_slider_has_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "MOST_MOMENTS", most := few_or_many(100, MOST_MOMENTS))
    story = RecordedStory(1, path := tmp_path / "day.jsonl", 2 * most, only_last=True)
    source = source_of(path)
    assert most // 2 < len(source.record.at_s) <= most
    assert tables(source.picture()) == tables(story.pictures[-1])


@pytest.mark.parametrize("seed", range(few_or_many(3, 30)))
def test_a_file_that_was_cut_or_edited_is_shown_up_to_there(seed: int, tmp_path: Path) -> None:
    story = RecordedStory(seed, path := tmp_path / "day.jsonl", events=40)
    lines = path.read_bytes().splitlines(keepends=True)
    cut = story.chance.randrange(5, len(lines) - 2)
    path.write_bytes(b"".join(lines[:cut]) + lines[cut][:20])
    source = source_of(path)
    assert len(source.record.at_s) == cut - 1
    assert source.record.trouble.startswith(f"read up to event {cut - 1:,}: ")
    assert "cut off" in source.record.trouble
    assert tables(source.picture()) == tables(story.pictures[cut - 2])
    edited = lines[cut].replace(b'"at_ns":', b'"at_ns":1', 1)
    assert edited != lines[cut]
    path.write_bytes(b"".join([*lines[:cut], edited, *lines[cut + 1 :]]))
    source = source_of(path)
    assert f"line {cut + 1}" in source.record.trouble
    assert len(source.record.at_s) == cut - 1


def test_a_record_that_this_weft_decides_otherwise_says_so(tmp_path: Path) -> None:
    RecordedStory(3, path := tmp_path / "day.jsonl", events=60)
    source = source_of(path, policy="random")
    assert "decides differently" in source.record.trouble
    assert len(source.record.at_s) < 60


def test_an_empty_record_is_an_empty_picture(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    with path.open("wb") as out:
        DecisionsWriter(out).write(Header([ProfileUse("weft", [PolicyUse("fgd")])]))
    source = source_of(path)
    assert source.picture() == Picture(0.0)
    assert source.record.at_s == ()
    assert "read up to event 0" in source.record.trouble
