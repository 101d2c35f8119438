"""Pieces of CEL, made of the dialects' names."""

import re
from collections.abc import Iterable

from weft.dialects.catalog import ALL, ASKING_LABELS, RESOURCES
from weft.dialects.registry import INCLUDES

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


def asks_in_words_of_two() -> str:
    """Tells whether the pod asks for GPUs in the words of several systems, none of which reads the
    other's, as `registry.choose` refuses it."""
    including: dict[str, list[str]] = {}
    for name, included in INCLUDES.items():
        for other in included:
            including.setdefault(other, []).append(name)
    words = {system.name: _words_of(system.resources, system.asking_labels) for system in ALL}
    asked = []
    for system in ALL:
        if system.name == "coscheml":
            continue  # gpushare's own words
        others = [words[name] for name in including.get(system.name, ()) if name != "coscheml"]
        alone = "".join(f" && !{other}" for other in others)
        asked.append(f"({words[system.name]}{alone})")
    return f"[{', '.join(asked)}].filter(asked, asked).size() > 1"


def _words_of(resources: Iterable[str], labels: Iterable[str]) -> str:
    amounts, own = "c.resources.limits", "object.metadata.labels"
    resources, labels = sorted(resources), sorted(labels)
    tests = []
    if resources:
        asked = f"{amounts}.exists(r, r in {listed(resources)} && string({amounts}[r]) != '0')"
        named = f"has(c.resources) && has({amounts}) && {asked}"
        tests.append(f"({CONTAINERS}).exists(c, {named})")
    if labels:
        tests.append(f"(has({own}) && {own}.exists(l, l in {listed(labels)}))")
    return f"({' || '.join(tests)})"
