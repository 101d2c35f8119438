"""The real API server lets only those write where a pod's GPUs are who have to."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from admission_writes import KEYS, dropped, forbidden, needed
from control_plane import ControlPlane
from strict_cluster import StrictCluster

MARKS = {key: f"value-{number}" for number, key in enumerate(KEYS)}


@pytest.fixture(scope="module")
def cluster(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StrictCluster]:
    """A control plane of its own: who may do what is decided there as in clusters."""
    folder: Path = tmp_path_factory.mktemp("strict")
    with ControlPlane(control_plane.binaries, folder, as_in_clusters=True) as plane:
        made = StrictCluster(plane, MARKS)
        made.fill()
        by_alice = [write for write in forbidden(made) if write.user == "alice"]
        for _ in range(600):  # the API server hears of the policies one by one
            if all(map(made.refusal, by_alice)):
                break
        yield made
        made.close()


def test_no_forbidden_write_is_taken(
    cluster: StrictCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    writes = list(forbidden(cluster))
    said = [(write, cluster.refusal(write)) for write in writes]
    taken = [write.name for write, text in said if not text]
    assert taken == [], "; ".join(taken)
    by_others = [
        f"{write.name}: {text}"
        for write, text in said
        if write.by_policy and "ValidatingAdmissionPolicy 'weft-" not in text
    ]
    assert by_others == []
    assert len(writes) >= 60
    with capsys.disabled():
        sys.stdout.write(f"\n{len(writes)} forbidden writes refused ")


def test_no_needed_write_is_refused(
    cluster: StrictCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    writes = list(needed(cluster))
    refused = {write.name: text for write in writes if (text := cluster.refusal(write))}
    assert refused == {}
    assert len(writes) >= 60
    with capsys.disabled():
        sys.stdout.write(f"\n{len(writes)} needed writes taken ")


def test_marks_on_what_takes_no_metadata_are_not_written(cluster: StrictCluster) -> None:
    for write in dropped():
        assert cluster.answer(write)["metadata"]["annotations"] == MARKS, write.name
