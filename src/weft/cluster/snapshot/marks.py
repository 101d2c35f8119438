"""Renames in GPU systems' annotations the pods, nodes, containers, applications and GPUs."""

import json
from typing import Any

from weft.cluster.snapshot.pseudonyms import Pseudonyms
from weft.dialects import elastic, gpushare, groups, hami, kai, queues
from weft.dialects.catalog import ALL, ASKING_ANNOTATIONS
from weft.dialects.foreign import ANNOTATIONS
from weft.model.annotations import (
    ADVERTISES,
    AGENT,
    APPLICATION,
    CLASS,
    EXPECTED_DURATION,
    FENCED_VERSION,
    GANG,
    GANG_SIZE,
    GPU_MODEL,
    INVENTORY,
    ISOLATION,
    MOVABLE,
    OUT_OF_MEMORY,
    PLACEMENT,
    PLACEMENT_COPY,
    PLUGIN_GPUS,
    RESTART_COST,
    SLO_MS,
    SOLO_P99_MS,
    SOLO_RATE,
    TERM,
)
from weft.model.plugin_gpus import PluginGpus, decode_plugin_gpus, encode_plugin_gpus

_BY_CONTAINER = (elastic.CONTAINER, elastic.NANO_CONTAINER)
"""Prefixes of annotations that end in a container's name."""
_OTHERS = (
    *(ADVERTISES, AGENT, CLASS, EXPECTED_DURATION, FENCED_VERSION, GPU_MODEL, INVENTORY),
    *(GANG, GANG_SIZE, groups.KOORDINATOR_LEAST, groups.KOORDINATOR_TOTAL, groups.LWS_SIZE),
    *(groups.KOORDINATOR_WAITS, groups.KOORDINATOR_MODE, groups.KOORDINATOR_MATCH),
    *(ISOLATION, MOVABLE, RESTART_COST, SLO_MS, SOLO_P99_MS, SOLO_RATE, TERM),
    *hami.RULES,
    *(*ANNOTATIONS, *ASKING_ANNOTATIONS, kai.MPS, kai.RESERVED_CARD),
    *(name for s in ALL for name in (*s.written, *s.kept_marks, *s.written_on_nodes)),
)
_NAMES = (
    *(APPLICATION, hami.NODE, kai.CONTAINER),
    *(*groups.GROUP_NAMES, groups.KOORDINATOR_NAME, groups.TASK),
)
"""Annotations whose value is a name."""
_EXACT = frozenset(name for name in _OTHERS if not name.endswith("*"))
_BEGINNINGS = tuple(name.rstrip("*") for name in _OTHERS if name.endswith("*"))


class Marks:
    """Renames one snapshot's annotations; unknown annotations are dropped."""

    def __init__(self, names: Pseudonyms) -> None:
        self._names = names

    def renamed(self, annotations: dict[str, str]) -> dict[str, str]:
        """Return the known annotations, renamed."""
        renamed = {}
        for key, text in annotations.items():
            beginning = next((begin for begin in _BY_CONTAINER if key.startswith(begin)), "")
            if beginning:
                name = beginning + self._names.name(key.removeprefix(beginning))
                renamed[name] = self._names.gpus_in(text)
            elif key in queues.READ_ANNOTATIONS:  # which may be namespaces'
                renamed[key] = self._names.word(text)
            elif (value := self._value(key, text)) is not None:
                renamed[key] = value
        return renamed

    def _value(self, key: str, text: str) -> str | None:
        if key in _NAMES:
            return self._names.name(text)
        if key in (PLACEMENT, PLACEMENT_COPY, PLUGIN_GPUS):
            return self._plugin_gpus(text) if key == PLUGIN_GPUS else self._placement(text)
        if key == OUT_OF_MEMORY:
            return self._out_of_memory(text)
        if key == gpushare.ALLOCATION:
            return self._allocation(text)
        if key in _EXACT or key.startswith(_BEGINNINGS):
            return self._names.gpus_in(text)
        return None

    def _placement(self, text: str) -> str:
        """Rename a placement's pod, node and GPUs; "damaged" if it is malformed."""
        value = _object(text)
        if value is None:
            return "damaged"
        renamed = {
            "pod": self._names.uid(str(value.get("pod"))),
            "node": self._names.name(str(value.get("node"))),
        }
        if "shares" in value:
            renamed["shares"] = _with_gpus(value["shares"], self._names)
        return json.dumps(renamed, separators=(",", ":"))

    def _plugin_gpus(self, text: str) -> str:
        """Rename GPUs and pods of NVIDIA's device plugin; "damaged" if the text is malformed."""
        try:
            given = decode_plugin_gpus(text)
        except ValueError:
            return "damaged"
        cards = tuple(map(self._names.gpu, given.cards))
        pods = {self._names.uid(uid): gpus for uid, gpus in given.pods.items()}
        return encode_plugin_gpus(PluginGpus(cards, pods))

    def _out_of_memory(self, text: str) -> str | None:
        value = _object(text)
        if value is None:
            return None
        known = {"end": self._names.name(str(value.get("end", "")))}
        if isinstance(value.get("peak_mib"), int):
            return json.dumps({**known, "peak_mib": value["peak_mib"]})
        return json.dumps(known)

    def _allocation(self, text: str) -> str | None:
        """Rename the containers in `{"<container>": {"<gpu>": units}}`."""
        value = _object(text)
        if value is None:
            return None
        return json.dumps({self._names.name(name): cards for name, cards in value.items()})


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _with_gpus(value: Any, names: Pseudonyms) -> Any:
    """Hash every text in the value; each is a GPU's UUID."""
    if isinstance(value, list):
        return [_with_gpus(inner, names) for inner in value]
    return (
        names.gpu(value) if isinstance(value, str) else None if isinstance(value, dict) else value
    )
