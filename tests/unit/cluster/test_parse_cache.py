"""A pod that asks like another is not read again, and is itself all the same."""

from typing import Any

import msgspec
import pytest

from weft.cluster.state.pod_reader import LARGE_BYTES, ParseCache
from weft.dialects.dialect import DialectSettings
from weft.dialects.system import timestamp_ns
from weft.kube.pods import Pod
from weft.model import BadInputError, Constraints, HostPort, PodRequest, Shape

ANY = Constraints()
EARLY, LATE = "2026-01-31T08:00:00Z", "2026-01-31T08:00:05Z"


class Reader:
    """Says who was read last."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, pod: Pod, settings: DialectSettings, constraints: Constraints) -> PodRequest:
        self.read.append(pod.metadata.name)
        if pod.spec.priority == -1:
            raise BadInputError("spec.priority", "is -1")
        meta, shape = pod.metadata, Shape(constraints=constraints)
        came_ns = timestamp_ns(meta.creation_timestamp)
        return PodRequest(meta.uid, meta.name, shape, namespace=meta.namespace, created_ns=came_ns)


def pod(name: str, created: str = EARLY, **more: Any) -> Pod:
    meta = {"name": name, "namespace": "d", "uid": f"u-{name}", "creationTimestamp": created}
    meta |= {key: more.pop(key) for key in ("labels", "annotations") if key in more}
    return msgspec.convert({"metadata": meta, "spec": {"schedulerName": "weft", **more}}, Pod)


def test_pods_alike_are_read_once_and_keep_their_names() -> None:
    reader = Reader()
    alike = ParseCache(reader)
    first = alike.read(pod("a"), DialectSettings(), ANY)
    second = alike.read(pod("b", LATE), DialectSettings(), ANY)
    assert reader.read == ["a"]
    assert (second.uid, second.name, second.namespace) == ("u-b", "b", "d")
    assert second.created_ns - first.created_ns == 5 * 10**9
    assert second.shape is first.shape


@pytest.mark.parametrize(
    ("other", "settings", "constraints"),
    [
        (pod("b", priority=3), DialectSettings(), ANY),
        (pod("b", labels={"x": "y"}), DialectSettings(), ANY),
        (pod("b", annotations={"x": "y"}), DialectSettings(), ANY),
        (pod("b"), DialectSettings(gpushare_unit="MiB"), ANY),
        (pod("b"), DialectSettings(), Constraints(ports=(HostPort(80),))),
    ],
)
def test_any_other_word_is_read(
    other: Pod, settings: DialectSettings, constraints: Constraints
) -> None:
    reader = Reader()
    alike = ParseCache(reader)
    alike.read(pod("a"), DialectSettings(), ANY)
    assert alike.read(other, settings, constraints).shape.constraints == constraints
    assert reader.read == ["a", "b"]


def test_what_cannot_be_read_is_told_each_time() -> None:
    alike = ParseCache(Reader())
    for name in ("a", "b"):
        with pytest.raises(BadInputError, match="priority"):
            alike.read(pod(name, priority=-1), DialectSettings(), ANY)


def test_only_so_many_are_kept() -> None:
    reader = Reader()
    alike = ParseCache(reader, keep=2)
    for priority in (1, 2, 3, 3, 1):
        alike.read(pod(f"p{priority}", priority=priority), DialectSettings(), ANY)
    assert reader.read == ["p1", "p2", "p3", "p1"]


def test_large_pods_are_read_anew_for_they_would_fill_the_memory() -> None:
    reader = Reader()
    alike = ParseCache(reader)
    for name in ("a", "b"):
        alike.read(pod(name, annotations={"note": "x" * LARGE_BYTES}), DialectSettings(), ANY)
    assert reader.read == ["a", "b"]
