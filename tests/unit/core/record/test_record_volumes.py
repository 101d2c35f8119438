"""A decisions file has what was known of volumes: it replays alike, and says why a claim waits."""

from pathlib import Path

import msgspec

from weft.core.engine import Event, NodesChanged, PodAdded, PodBound, VolumesChanged
from weft.core.policies.catalog import built_in
from weft.core.record import (
    DecisionLines,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    explain,
    read,
    replay,
)
from weft.core.record.side import side_of
from weft.model import (
    Constraints,
    FreeVolume,
    NodeStorage,
    PodRequest,
    Requirement,
    StorageCapacity,
    StorageClass,
    StorageRules,
    Term,
    UnboundClaim,
)
from weft.testing import node, pod

CREATE = built_in().create
HEADER = Header([ProfileUse("weft", [PolicyUse("first-fit")])])
GIB = 1 << 30
ON_SSD = msgspec.structs.replace(node("b", gpus=1), labels={"disk": "ssd"})
ON_B = (Term((Requirement("disk", "In", ("ssd",)),)),)
VOLUMES = VolumesChanged(
    (FreeVolume("disk", "local", 2 * GIB, terms=ON_B),),
    (StorageClass("local"), StorageClass("made", "csi", counts_capacity=True)),
    (StorageCapacity("left", "made", 3 * GIB, ()),),
    (NodeStorage("a", {"csi": 1}), NodeStorage("b", {"csi": 1})),
)


def asking(name: str, gib: int, of_class: str, driver: str = "") -> PodRequest:
    claim = UnboundClaim(of_class, gib * GIB, driver=driver)
    asked = pod(name, memory_mib=100)
    constraints = Constraints(storage=StorageRules((claim,)))
    shape = msgspec.structs.replace(asked.shape, constraints=constraints)
    return msgspec.structs.replace(asked, shape=shape, claims=(f"of-{name}",))


EVENTS: list[Event] = [
    NodesChanged((node("a", gpus=1), ON_SSD)),
    VOLUMES,
    PodAdded(asking("prepared", 1, "local")),
    PodBound("prepared"),
    PodAdded(asking("second", 1, "local")),
    PodAdded(asking("large", 4, "made", "csi")),
]


def test_a_file_says_of_volumes_what_was_known(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    lines, text = DecisionLines(side_of(path)), []
    recorder = Recorder(
        HEADER.engine(CREATE), HEADER, lambda line: text.append(lines.encoded(line))
    )
    for number, event in enumerate(EVENTS, start=1):
        recorder.handle(event, number)
    path.write_bytes(b"".join(text))
    assert [line.event for line in read(path)[1]] == EVENTS
    assert replay(*read(path), CREATE).identical
    (chosen,) = [r for line in read(path)[1] for r in line.records if r.name == "prepared"]
    assert chosen.node == "b"
    second, large = explain(path, "second", CREATE), explain(path, "large", CREATE)
    assert "of-second asks for 1Gi of class local: no volume is free" in str(second)
    assert {change.text for change in second.changes} == {
        "let PersistentVolumeClaim of-second request class made instead of local",
        "free b GPU 0: end pod default/prepared (UID prepared)",
    }
    assert "capacity left there: 3Gi at most" in str(large)
    assert {change.text for change in large.changes} == {
        "let PersistentVolumeClaim of-large request at most 3Gi instead of 4Gi"
    }
