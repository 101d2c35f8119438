"""Snapshots beside a decisions file: only what changed, exact, checked when read."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from weft.core.engine import Event, NodesChanged, PodAdded, PodBound, SignalsChanged
from weft.core.framework.signals import FRESH, STALE, SignalsSnapshot, snapshot
from weft.core.policies.catalog import built_in
from weft.core.record import (
    DecisionLine,
    DecisionLines,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    explain,
    read,
    replay,
)
from weft.core.record.side import (
    SideError,
    SignalsKept,
    SnapshotPacker,
    Unpacker,
    clear,
    keep,
    side_of,
)
from weft.model import BadInputError
from weft.testing import node, pod

CREATE = built_in().create
HEADER = Header([ProfileUse("weft", [PolicyUse("load-aware")])])
GPUS = 400


def look(version: int, seed: int = 0, moved: int = 0, **more: Any) -> SignalsSnapshot:
    """All GPUs' columns; `moved` of them differ from those of the same seed."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name in ("sm_active_ratio", "memory_used_mib", "power_w"):
        values = rng.random(GPUS) * 1_000
        values[:moved] += version
        ages = np.where(np.arange(GPUS) < moved, STALE, FRESH).astype(np.int8)
        columns[name] = (values, ages)
    names = [(f"n{index:03d}", 0) for index in range(GPUS)]
    return snapshot(version, version * 10**9, names, columns, **more)


def stored(folder: Path, *snapshots: SignalsSnapshot) -> list[tuple[SignalsKept, int]]:
    """The stand-in for each snapshot in the file, and the size of its blob."""
    packer, found = SnapshotPacker(), []
    for one in snapshots:
        kept, packed = packer.pack(one)
        keep(folder, kept.blob, packed)
        found.append((kept, len(packed)))
    return found


def read_again(folder: Path, *kept: SignalsKept) -> list[SignalsSnapshot]:
    unpacker = Unpacker(folder)
    return [unpacker.unpack(one) for one in kept]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "signals"


def test_every_snapshot_comes_back_to_the_bit(folder: Path) -> None:
    odd = look(5, seed=3)
    odd = msgspec.structs.replace(odd, values=b"\x7f\xf8\0\0\0\0\0\1" * (len(odd.values) // 8))
    snapshots = [
        look(1, idle_mib={"p": (1, 2), "q": (3,)}),
        look(2, moved=7, idle_mib={"q": (4,)}),
        look(3, moved=7, idle_mib={"q": (4,), "p": (1, 2)}, why="no answer"),
        snapshot(4, 4, [("other", 1)], {"x": (np.array([0.5]), np.array([FRESH], np.int8))}),
        SignalsSnapshot(5, 5, why="nothing is known"),
        odd,
        look(7, seed=3),
    ]
    told = [kept for kept, _ in stored(folder, *snapshots)]
    assert read_again(folder, *told) == snapshots
    assert [kept.version for kept in told] == [one.version for one in snapshots]


def test_only_what_changed_takes_room(folder: Path) -> None:
    idle = {f"uid-{index:032x}": (index,) for index in range(500)}
    (_, whole), (_, same), (_, little), (_, all_new) = stored(
        folder,
        look(1, idle_mib=idle),
        look(2, idle_mib=idle),
        look(3, moved=20, idle_mib=idle),
        look(4, seed=9, idle_mib={}),
    )
    assert whole > GPUS * 3 * 6
    assert same < 300
    assert little < whole // 10
    assert all_new > GPUS * 3 * 6, "every number is another"


def test_the_same_change_is_the_same_blob_and_names_are_hashes(folder: Path) -> None:
    first = stored(folder, look(1))[0][0]
    assert stored(folder, look(1))[0][0] == first
    assert [path.name for path in folder.iterdir()] == [first.blob]
    assert len(first.blob) == 64


def test_what_is_missing_changed_or_cut_off_is_one_error_that_names_it(folder: Path) -> None:
    (one, _), (two, _) = stored(folder, look(1), look(2, moved=9))
    path = folder / two.blob
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:50] + b"\0" + whole[51:], b""):
        path.write_bytes(broken)
        with pytest.raises(SideError, match=f"{two.blob} does not match its name"):
            read_again(folder, one, two)
    path.unlink()
    with pytest.raises(SideError, match=f"{two.blob}: No such file"):
        read_again(folder, one, two)
    with pytest.raises(SideError, match="passwd' is not a blob name"):
        read_again(folder, SignalsKept(1, 1, "../../etc/passwd"))


def test_a_change_without_what_it_changes_is_refused(folder: Path) -> None:
    (_, _), (two, _) = stored(folder, look(1), look(2, moved=9))
    with pytest.raises(SideError, match="it follows version 1, not 0"):
        read_again(folder, two)


def test_clearing_removes_blobs_and_nothing_else(folder: Path) -> None:
    clear(folder)
    stored(folder, look(1))
    (folder / f".{'0' * 64}.4711").write_bytes(b"cut off")
    clear(folder)
    assert not folder.exists()
    stored(folder, look(1))
    (folder / "mine.txt").write_text("precious")
    with pytest.raises(OSError, match="not empty"):
        clear(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


# --- in a decisions file ----------


def record(path: Path, events: list[Event]) -> None:
    lines, text = DecisionLines(side_of(path)), []
    recorder = Recorder(
        HEADER.engine(CREATE), HEADER, lambda line: text.append(lines.encoded(line))
    )
    for number, event in enumerate(events, start=1):
        recorder.handle(event, number)
    path.write_bytes(b"".join(text))


EVENTS: list[Event] = [
    NodesChanged(tuple(node(f"n{index:03d}", gpus=1) for index in range(GPUS))),
    SignalsChanged(look(1)),
    PodAdded(pod("p", memory_mib=100)),
    PodBound("p"),
    SignalsChanged(look(2, moved=50)),
    PodAdded(pod("q", memory_mib=100)),
    PodBound("q"),
]


def test_a_file_and_its_folder_are_all_that_a_replay_needs(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    record(path, EVENTS)
    told = [line for line in path.read_text().splitlines() if "SignalsKept" in line]
    assert [json.loads(line)["event"]["version"] for line in told] == [1, 2]
    assert max(map(len, told)) < 200
    assert len(list(side_of(path).iterdir())) == 2
    assert [line.event for line in read(path)[1]] == EVENTS
    assert replay(*read(path), CREATE).identical
    assert explain(path, "q", CREATE).metrics is not None
    moved = tmp_path / "elsewhere" / "renamed.jsonl"
    moved.parent.mkdir()
    path.replace(moved)
    side_of(path).replace(side_of(moved))
    assert replay(*read(moved), CREATE).identical
    packed = moved.with_name("renamed.jsonl.gz")
    packed.write_bytes(gzip.compress(moved.read_bytes()))
    assert replay(*read(packed), CREATE).identical


def test_a_line_never_names_what_is_not_there_yet(tmp_path: Path) -> None:
    side = tmp_path / "signals"
    lines = DecisionLines(side)
    for version in (1, 2):
        text = lines.encoded(DecisionLine(version, SignalsChanged(look(version, moved=version))))
        assert (side / json.loads(text)["event"]["blob"]).is_file()
    broken = tmp_path / "a-file"
    broken.write_text("no folder")
    with pytest.raises(OSError, match="a-file"):
        DecisionLines(broken).encoded(DecisionLine(1, SignalsChanged(look(1))))


def test_a_file_without_its_folder_names_line_and_blob(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    record(path, EVENTS)
    blob = next(iter(side_of(path).iterdir()))
    clear(side_of(path))
    with pytest.raises(BadInputError) as caught:
        replay(*read(path), CREATE)
    assert str(caught.value).startswith(f"{path}, line 3: blob {side_of(path)}/")
    assert blob.parent == side_of(path)


def test_without_signals_and_with_few_there_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    small = snapshot(1, 1, [("n000", 0)], {"x": (np.array([0.5]), np.array([FRESH], np.int8))})
    record(path, [*EVENTS[:1], SignalsChanged(small), *EVENTS[2:4]])
    assert not side_of(path).exists()
    assert replay(*read(path), CREATE).identical
