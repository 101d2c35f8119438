"""Pieces of CEL, made of the dialects' names."""

import re
from collections.abc import Iterable

from weft.dialects.catalog import ASKING_LABELS, RESOURCES

CONTAINERS = (
    "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
)
"""All containers of a pod that start with it, as a list."""
EPHEMERAL = "(has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
"""Those that were added to a running pod (kubectl debug)."""


def quoted(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(names: Iterable[str]) -> str:
    """A list of string literals."""
    return "[" + ", ".join(quoted(name) for name in names) + "]"


def is_one_of(key: str, names: Iterable[str]) -> str:
    """Tells whether the string `key` is one of these names; a name that ends in * is a
    beginning."""
    names = sorted(names)
    whole = [name for name in names if not name.endswith("*")]
    begun = [name[:-1] for name in names if name.endswith("*")]
    tests = [f"{key} in {listed(whole)}"] * bool(whole)
    if begun:  # one pattern: each call costs every pod's creation a microsecond or two a key
        pattern = f"^({'|'.join(re.escape(begin) for begin in begun)})"
        tests.append(f"{key}.matches({quoted(pattern)})")
    return "(" + " || ".join(tests) + ")"


def asks_for_gpus() -> str:
    """Tells whether the pod asks for GPUs in the words of any dialect: a resource that is not 0, or
    a label, as `registry.choose` sees it.

    Limits tell of requests too: the API server takes no extended resource with a request alone.
    What a pod has is looked up among the dialects' names, and not the other way round: most
    containers have two limits, and each look costs every pod's creation some microseconds.
    """
    amounts = "c.resources.limits"
    asked = f"{amounts}.exists(r, r in {listed(RESOURCES)} && string({amounts}[r]) != '0')"
    resources = f"({CONTAINERS}).exists(c, has(c.resources) && has({amounts}) && {asked})"
    own = "object.metadata.labels"
    labels = f"has({own}) && {own}.exists(l, l in {listed(sorted(ASKING_LABELS))})"
    return f"{resources} || ({labels})"
