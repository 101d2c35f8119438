"""Fragments of CEL expressions, built from the names that dialects read."""

import re
from collections.abc import Iterable

from weft.dialects.catalog import ALL, ASKING_LABELS, RESOURCES
from weft.dialects.registry import INCLUDES

CONTAINERS = (
    "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
)
"""CEL list of all containers with which a pod is created."""
EPHEMERAL = "(has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
"""CEL list of the containers that were added to a running pod (kubectl debug)."""


def quoted(text: str) -> str:
    """Return a CEL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(names: Iterable[str]) -> str:
    """Return a CEL list of string literals."""
    return "[" + ", ".join(quoted(name) for name in names) + "]"


def is_one_of(key: str, names: Iterable[str]) -> str:
    """Return CEL that is true if the string `key` is one of these names; a name that ends in * is a
    prefix."""
    names = sorted(names)
    whole = [name for name in names if not name.endswith("*")]
    begun = [name[:-1] for name in names if name.endswith("*")]
    tests = [f"{key} in {listed(whole)}"] * bool(whole)
    if begun:  # one pattern: each call costs every pod's creation 1-2 µs per key
        pattern = f"^({'|'.join(re.escape(begin) for begin in begun)})"
        tests.append(f"{key}.matches({quoted(pattern)})")
    return "(" + " || ".join(tests) + ")"


def asks_for_gpus() -> str:
    """Return CEL that is true if the pod requests GPUs in any dialect: by a resource that is not 0,
    or by a label, as in `registry.choose`.

    Reading limits suffices: the API server requires a limit for each extended resource requested.
    The pod's own names are looked up among the dialects' names, not the reverse: most containers
    have two limits, and each lookup adds microseconds to the creation of every pod."""
    amounts = "c.resources.limits"
    asked = f"{amounts}.exists(r, r in {listed(RESOURCES)} && string({amounts}[r]) != '0')"
    resources = f"({CONTAINERS}).exists(c, has(c.resources) && has({amounts}) && {asked})"
    own = "object.metadata.labels"
    labels = f"has({own}) && {own}.exists(l, l in {listed(sorted(ASKING_LABELS))})"
    return f"{resources} || ({labels})"


def asks_in_words_of_two() -> str:
    """Return CEL that is true if the pod requests GPUs in several dialects of which none includes
    the other; `registry.choose` refuses such a pod."""
    including: dict[str, list[str]] = {}
    for name, included in INCLUDES.items():
        for other in included:
            including.setdefault(other, []).append(name)
    # coscheml uses gpushare's names; KAI asks by annotations alone, which yield to other words.
    words = {
        system.name: _words_of(system.resources, system.asking_labels)
        for system in ALL
        if system.name != "coscheml" and (system.resources or system.asking_labels)
    }
    asked = []
    for name, own in words.items():
        others = [words[other] for other in including.get(name, ()) if other in words]
        alone = "".join(f" && !{other}" for other in others)
        asked.append(f"({own}{alone})")
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
