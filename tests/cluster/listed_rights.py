"""The rights that docs/reference/rights.md lists."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "rights.md"
EVERYWHERE = ""


class ListedRight(NamedTuple):
    """A verb on a resource (`leases.coordination.k8s.io`, `pods/status`) or a path.

    `who` is a service account, or `role NAME`. `name` is the only object it is for, "" for all.
    """

    who: str
    verb: str
    resource: str
    namespace: str = EVERYWHERE
    name: str = ""


def listed_rights() -> Iterator[ListedRight]:
    """Every right of the page's table."""
    who = ""
    for line in PAGE.read_text().partition("\n## ")[0].splitlines():
        if not line.startswith("| ") or line.startswith("| who "):
            continue
        first, resources, verbs, where, _ = (part.strip() for part in line.split("|")[1:-1])
        who = first.replace("`", "") or who
        place, _, names = where.partition(": ")
        namespace = "" if place == "everywhere" else place
        for resource, verb, name in itertools.product(
            resources.split(", "), verbs.split(", "), names.split(", ")
        ):
            yield ListedRight(who, verb, resource, namespace, name)
