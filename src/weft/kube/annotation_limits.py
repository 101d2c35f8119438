"""Checks annotations and labels before they go into a Binding.

The API server does not check a Binding's annotations: bad keys and too much text land on the pod,
and every later write to that pod is refused. So they are checked before they are sent.
"""

import functools
import re
from collections.abc import Mapping

# Keys and values of all annotations of an object together (apimachinery, TotalAnnotationSizeLimitB)
ANNOTATION_BYTES = 256 * 1024

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(
    r"(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
)


def annotation_bytes(annotations: Mapping[str, str] | None) -> int:
    """The size of these annotations as the limit counts it."""
    return sum(
        len(key.encode()) + len(value.encode()) for key, value in (annotations or {}).items()
    )


def problem_of(
    annotations: Mapping[str, str], labels: Mapping[str, str], present_bytes: int = 0
) -> str:
    """The problem with them, in words; "" for none.

    `present_bytes` is the size of the annotations that the pod has already.
    """
    for key in annotations:
        if not _valid_key(key.lower()):  # as Kubernetes: the case of annotation keys is free
            return f"annotation key {key!r} is not valid in Kubernetes"
    for key, value in labels.items():
        if not _valid_key(key):
            return f"label key {key!r} is not valid in Kubernetes"
        if value and not _NAME.fullmatch(value):
            return f"label {key}: {value!r} is no valid label value"
    size = annotation_bytes(annotations) + present_bytes
    if size > ANNOTATION_BYTES:
        return f"annotations would be {size:,} bytes; an object may have {ANNOTATION_BYTES:,}"
    return ""


@functools.lru_cache(maxsize=4096)
def _valid_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not _PREFIX.fullmatch(prefix):
        return False
    return _NAME.fullmatch(name) is not None
