"""Compares the rights that are listed with the requests in API servers' audit logs.

    python tests/cluster/rights_used.py /tmp/pytest-of-$USER/pytest-current/*/audit.log

prints each listed right of scheduler and agent that no request used, and each request of theirs
that no right lists; the exit code is 1 where a request is beyond them. A process is known by its
user agent, whoever it runs as: most tests run it as an administrator.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from listed_rights import ListedRight, listed_rights

PROGRAMS = ("weft-scheduler", "weft-agent")
FOR_ALL = ("selfsubjectaccessreviews.authorization.k8s.io", "")
"""Requests that everybody may make: about one's own rights, and paths such as /version."""
_OF_OTHERS = ("weft-scheduler", "get", "leases.coordination.k8s.io", "kube-system")
SOME_MODES = {
    ListedRight(*_OF_OTHERS, "hami-scheduler"): "a profile of this schedulerName",
    ListedRight(*_OF_OTHERS, "kube-scheduler"): "a profile default-scheduler",
}
"""Rights of settings that only some tests have."""
OWN = {"default": "weft-system"}
"""Weft's own namespace is its pods'; for a process of the tests it is the kubeconfig's."""


class UsedRight(NamedTuple):
    """A request, as far as rights decide about it."""

    program: str
    verb: str
    resource: str
    namespace: str
    name: str


def requests_of(lines: Iterable[str]) -> Iterator[UsedRight]:
    """Every request of the programs that was let in."""
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        about = event.get("objectRef", {})
        answered = event.get("responseStatus", {}).get("code", 0)
        if event.get("userAgent") in PROGRAMS and answered not in (401, 403):
            parts = [about.get("resource", ""), about.get("subresource", "")]
            group = about.get("apiGroup", "")
            resource = ".".join(filter(None, ("/".join(filter(None, parts)), group)))
            place, name = about.get("namespace", ""), about.get("name", "")
            yield UsedRight(event["userAgent"], event["verb"], resource, place, name)


def right_of(request: UsedRight, listed: Iterable[ListedRight]) -> ListedRight | None:
    """The listed right that lets this request in."""
    places = ("", request.namespace, OWN.get(request.namespace))
    for right in listed:
        same = (right.who, right.verb, right.resource) == request[:3]
        in_reach = right.namespace in places and right.name in ("", request.name)
        if same and in_reach:
            return right
    return None


def main(files: list[str]) -> int:
    """Print both differences."""
    listed = [right for right in listed_rights() if right.who in PROGRAMS]
    used: Counter[ListedRight] = Counter()
    beyond: Counter[UsedRight] = Counter()
    for file in files:
        with Path(file).open() as lines:
            for request in requests_of(lines):
                right = right_of(request, listed)
                if right is not None:
                    used[right] += 1
                elif request.resource not in FOR_ALL:
                    beyond[request] += 1
    for right in listed:
        why = SOME_MODES.get(right, "never used")
        sys.stdout.write(f"{used[right] or why:>10}  {' '.join(filter(None, right))}\n")
    for request, count in beyond.items():
        sys.stdout.write(f"{count:>10}  beyond: {' '.join(filter(None, request))}\n")
    return 1 if beyond else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
