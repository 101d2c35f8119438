"""Pieces of CEL, made of the dialects' names."""

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
    tests += [f"{key}.startsWith({quoted(begin)})" for begin in begun]
    return "(" + " || ".join(tests) + ")"


def asks_for_gpus(containers: str = "variables.containers") -> str:
    """Tells whether the pod asks for GPUs in the words of any dialect: a resource that is not 0, or
    a label, as `registry.choose` sees it."""
    names = listed(RESOURCES)

    def named(which: str) -> str:
        amounts = f"c.resources.{which}"
        asked = f"{names}.exists(r, r in {amounts} && string({amounts}[r]) != '0')"
        return f"(has(c.resources) && has({amounts}) && {asked})"

    resources = f"{containers}.exists(c, {named('limits')} || {named('requests')})"
    labels = listed(sorted(ASKING_LABELS))
    own = "object.metadata.labels"
    return f"{resources} || (has({own}) && {labels}.exists(l, l in {own}))"
