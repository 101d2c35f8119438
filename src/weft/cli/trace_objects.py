"""Nodes and pods in what `kubectl get nodes,pods -A -o json` wrote."""

import sys
from pathlib import Path

import msgspec

from weft.files.reading import MOST_BYTES, MOST_MIB, read_text
from weft.kube.codec import MetaOnly
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.model import BadInputError

_COMMAND = "kubectl get nodes,pods -A -o json"


class _Listed(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


def read_objects(name: str) -> tuple[list[KubeNode], list[Pod]]:
    """The nodes and pods of a file, or (`-`) of standard input; other kinds are passed over."""
    where = "standard input" if name == "-" else name
    text = _standard_input() if name == "-" else read_text(Path(name)).encode()
    try:
        listed = msgspec.json.decode(text, type=_Listed)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadInputError(where, f"is not what `{_COMMAND}` writes: {error}") from None
    if listed.items is None:
        raise BadInputError(f"{where}, field items", f"is missing; give what `{_COMMAND}` writes")
    nodes: list[KubeNode] = []
    pods: list[Pod] = []
    for index, raw in enumerate(listed.items):
        _add(raw, f"{where}, items[{index}]", listed.kind.removesuffix("List"), nodes, pods)
    if not nodes:
        raise BadInputError(where, f"has no node; give what `{_COMMAND}` writes")
    if not pods:
        raise BadInputError(where, f"has no pod; give what `{_COMMAND}` writes, with -A")
    return nodes, pods


def _add(raw: msgspec.Raw, where: str, usual: str, nodes: list[KubeNode], pods: list[Pod]) -> None:
    try:
        kind = msgspec.json.decode(raw, type=_Listed).kind or usual
        if kind == "Node":
            nodes.append(msgspec.json.decode(raw, type=KubeNode))
        elif kind == "Pod":
            pods.append(msgspec.json.decode(raw, type=Pod))
        else:
            return
        if not msgspec.json.decode(raw, type=MetaOnly).metadata.name:
            raise BadInputError(f"{where}.metadata.name", "is missing")
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInputError(where, f"is no object as Kubernetes writes it: {error}") from None


def _standard_input() -> bytes:
    text = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise BadInputError("standard input", f"has more than {MOST_MIB} MiB; ask the cluster")
    return text
