"""All dialects, and the names that are theirs."""

import functools
import re
from collections.abc import Mapping

from weft.dialects.alnair import Alnair
from weft.dialects.coscheml import CoschemlDialect
from weft.dialects.elastic import Elastic
from weft.dialects.genius import GeniusDialect
from weft.dialects.gpushare import Gpushare
from weft.dialects.hami import Hami
from weft.dialects.kai import Kai
from weft.dialects.koordinator import Koordinator
from weft.dialects.kubeknots import Kubeknots
from weft.dialects.nvidia import Nvidia
from weft.dialects.plain import Plain
from weft.dialects.system import BaseDialect
from weft.dialects.volcano import Volcano
from weft.dialects.weft import Weft

# The more specific before what it refines: coscheml before gpushare, and before nvidia all that
# read `nvidia.com/gpu` too.
ALL: tuple[BaseDialect, ...] = (
    Weft(),
    Elastic(),
    CoschemlDialect(),
    Gpushare(),
    Alnair(),
    Hami(),
    GeniusDialect(),
    Kubeknots(),
    Kai(),
    Volcano(),
    Koordinator(),
    Nvidia(),
)
NONE = Plain()
RESOURCES = tuple(sorted({name for system in ALL for name in system.resources}))
"""Every extended resource that some dialect reads as asking for GPUs."""
_GPU_RESOURCE = re.compile("|".join(s.resource_pattern for s in ALL if s.resource_pattern))
ASKING_LABELS = frozenset(label for system in ALL for label in system.asking_labels)
"""Labels that ask for GPUs: unlike a spec they can be edited while a pod is bound, and after."""
ASKING_ANNOTATIONS = frozenset(name for system in ALL for name in system.asking_annotations)
"""Annotations that do the same."""
_KEPT = tuple(name for system in ALL for name in system.kept_marks)
KEPT_NAMES = frozenset({*ASKING_LABELS, *ASKING_ANNOTATIONS, *(n for n in _KEPT if n[-1] != "*")})
"""Labels and annotations of bound pods that count as they were first seen, but for beginnings."""
_KEPT_BEGINNINGS = tuple(name[:-1] for name in _KEPT if name[-1] == "*")
AGENT_ANNOTATIONS = tuple(system.agent_annotation for system in ALL if system.agent_annotation)
"""Annotations with which an agent on the node says which card it gave, whatever Weft chose."""


def is_kept_mark(name: str) -> bool:
    """Return True for marks of a system that goes on beside Weft."""
    return name in _KEPT or name.startswith(_KEPT_BEGINNINGS)


def kept_words(words: Mapping[str, str] | None) -> dict[str, str]:
    """Return those of a bound pod's labels or annotations that count as they were first seen."""
    if not words:
        return {}
    return {
        name: text
        for name, text in words.items()
        if name in KEPT_NAMES or name.startswith(_KEPT_BEGINNINGS)
    }


def kept_marks(words: Mapping[str, str] | None) -> dict[str, str]:
    """Return the same without those that ask."""
    return {name: text for name, text in kept_words(words).items() if is_kept_mark(name)}


@functools.lru_cache(maxsize=1024)
def is_gpu_resource(name: str) -> bool:
    """Return True if it asks for GPUs in one of the systems.

    None of these is a resource "of the node beside the GPUs", whichever system the pod is of.
    """
    return _GPU_RESOURCE.match(name) is not None
