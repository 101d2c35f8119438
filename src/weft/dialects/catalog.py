"""All dialects, and the resource, label and annotation names that they read."""

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

# Specific dialects come first: coscheml before gpushare, and before nvidia all that also read
# `nvidia.com/gpu`.
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
"""Extended resources of all dialects by which pods request GPUs."""
_GPU_RESOURCE = re.compile("|".join(s.resource_pattern for s in ALL if s.resource_pattern))
ASKING_LABELS = frozenset(label for system in ALL for label in system.asking_labels)
"""Labels by which pods request GPUs. Unlike a spec, they can be edited while a pod is being bound,
and afterwards."""
ASKING_ANNOTATIONS = frozenset(name for system in ALL for name in system.asking_annotations)
"""Annotations by which pods request GPUs."""
_KEPT = tuple(name for system in ALL for name in system.kept_marks)
KEPT_NAMES = frozenset({*ASKING_LABELS, *ASKING_ANNOTATIONS, *(n for n in _KEPT if n[-1] != "*")})
"""Labels and annotations of a bound pod of which the value that Weft saw first counts, whatever is
written later. Names that begin as in `_KEPT_BEGINNINGS` are treated alike."""
_KEPT_BEGINNINGS = tuple(name[:-1] for name in _KEPT if name[-1] == "*")
AGENT_ANNOTATIONS = tuple(system.agent_annotation for system in ALL if system.agent_annotation)
"""Annotations in which a system's agent on the node writes the card that it gave a pod, which may
differ from the card that Weft chose."""


def is_kept_mark(name: str) -> bool:
    """Return True for a label or annotation in which a system that runs next to Weft writes a bound
    pod's GPUs."""
    return name in _KEPT or name.startswith(_KEPT_BEGINNINGS)


def kept_words(words: Mapping[str, str] | None) -> dict[str, str]:
    """Return those of a bound pod's labels or annotations of which the value seen first counts:
    they request GPUs, or name the GPUs that the pod has."""
    if not words:
        return {}
    return {
        name: text
        for name, text in words.items()
        if name in KEPT_NAMES or name.startswith(_KEPT_BEGINNINGS)
    }


def kept_marks(words: Mapping[str, str] | None) -> dict[str, str]:
    """Return those of a bound pod's labels or annotations in which a system that runs next to Weft
    writes the pod's GPUs."""
    return {name: text for name, text in kept_words(words).items() if is_kept_mark(name)}


@functools.lru_cache(maxsize=1024)
def is_gpu_resource(name: str) -> bool:
    """Return True if pods of any system request GPUs by this resource.

    Such a resource is never counted as an ordinary extended resource, whichever system the pod
    uses.
    """
    return _GPU_RESOURCE.match(name) is not None
