"""Reads nodes and pods from the output of `kubectl get nodes,pods -A -o json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from weft.files.reading import read_text
from weft.kube.codec import MetaOnly
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.model import BadInputError

_COMMAND = "kubectl get nodes,pods -A -o json"


class _Listed(msgspec.Struct, rename="camel"):
    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] | None = None


def read_objects(name: str) -> tuple[list[KubeNode], list[Pod]]:
    """Return the nodes and pods in a file, or in standard input (`-`); other kinds are skipped."""
    objects = objects_by_kind(name, {"Node": KubeNode, "Pod": Pod})
    return objects["Node"], objects["Pod"]


def objects_by_kind(name: str, kinds: Mapping[str, type]) -> dict[str, list[Any]]:
    """Return the objects of these kinds in a file, or in standard input (`-`), by kind; other
    objects are skipped. `BadInputError` without nodes or pods. A kind whose name exists in several
    API groups is given with its group, such as `PodGroup.scheduling.x-k8s.io`."""
    where = "standard input" if name == "-" else name
    text = read_text(Path(name)).encode()
    try:
        listed = msgspec.json.decode(text, type=_Listed)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadInputError(where, f"is not what `{_COMMAND}` writes: {error}") from None
    if listed.items is None:
        raise BadInputError(
            f"{where}, field items", f"is missing; provide the output of `{_COMMAND}`"
        )
    objects: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for index, raw in enumerate(listed.items):
        kind, item = _read(raw, f"{where}, items[{index}]", listed.kind.removesuffix("List"), kinds)
        if item is not None:
            objects[kind].append(item)
    if not objects["Node"]:
        raise BadInputError(where, f"has no node; provide the output of `{_COMMAND}`")
    if not objects["Pod"]:
        raise BadInputError(where, f"has no pod; provide the output of `{_COMMAND}`, with -A")
    return objects


def _read(
    raw: msgspec.Raw, where: str, usual: str, kinds: Mapping[str, type]
) -> tuple[str, Any | None]:
    """Return the object's kind, and the object, or None if its kind is not wanted."""
    try:
        listed = msgspec.json.decode(raw, type=_Listed)
        kind = listed.kind or usual
        if kind not in kinds:
            kind = f"{kind}.{listed.api_version.partition('/')[0]}"
        if kind not in kinds:
            return kind, None
        if not msgspec.json.decode(raw, type=MetaOnly).metadata.name:
            raise BadInputError(f"{where}.metadata.name", "is missing")
        return kind, msgspec.json.decode(raw, type=kinds[kind])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInputError(where, f"is not a Kubernetes object: {error}") from None
