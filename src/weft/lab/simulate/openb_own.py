"""Weft's own columns of openb files, for what openb's columns cannot express.

A cell of `weft_node` or `weft_pod` is a JSON object of fields that replace those of the other
columns."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from weft.model import Node, Shape

NODE, POD = "weft_node", "weft_pod"
Value = TypeVar("Value", Node, Shape)


def merged(base: Value, cell: str) -> Value:
    """Return the value with the cell's fields replaced; `ValueError` says what is wrong with the
    cell."""
    if not cell:
        return base
    try:
        fields = msgspec.json.decode(cell, type=dict[str, msgspec.Raw])
        unknown = sorted(set(fields) - set(base.__struct_encode_fields__))
        if unknown:
            known = ", ".join(base.__struct_encode_fields__)
            raise ValueError(f"has a field {unknown[0]!r}, which is not one of {known}")
        whole = msgspec.json.decode(msgspec.json.encode(base), type=dict[str, msgspec.Raw])
        return msgspec.json.decode(msgspec.json.encode(whole | fields), type=type(base))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"is not the JSON that weft trace writes: {error}") from None


def beyond(base: Value, value: Value) -> str:
    """Return the cell that turns `base` into `value`; "" if they are equal."""
    fields = {
        encoded: getattr(value, name)
        for name, encoded in zip(base.__struct_fields__, base.__struct_encode_fields__, strict=True)
        if getattr(value, name) != getattr(base, name)
    }
    return msgspec.json.encode(fields).decode() if fields else ""


def claims(shape: Shape) -> str:
    """Return the cell with all of a pod's GPU requests."""
    return msgspec.json.encode({"claims": shape.gpu_requests}).decode()


def usual_card_mib(nodes: Iterable[Node]) -> int:
    """Return the mean memory of the cluster's GPUs in MiB; 1 if there are none."""
    cards = [gpu.memory_mib for node in nodes for gpu in node.gpus]
    return sum(cards) // max(1, len(cards)) or 1


def asked(shape: Shape, card_mib: int) -> tuple[int, int]:
    """Return how many GPUs are requested, and the average thousandths of each.

    A share counts as its cores, or as its part of a GPU of `card_mib` MiB if that is more."""
    gpus = sum(request.count for request in shape.gpu_requests)
    total = 0
    for request in shape.gpu_requests:
        part = request.memory.on_node(0).mib_on(card_mib) * 1000 // max(1, card_mib)
        if request.whole:
            total += 1000 * request.count
        elif request.split:
            total += max(request.milli * request.count, part)
        else:
            total += min(1000, max(request.milli, part)) * request.count
    return gpus, -(-total // gpus) if gpus else 0
