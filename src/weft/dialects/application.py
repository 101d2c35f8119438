"""Names the application that a pod runs.

The first of these that is known counts: Weft's annotation, a container name that Co-scheML knows,
the workload that owns the pod, the image.
"""

from typing import NamedTuple

from weft.dialects.coscheml import APPLICATIONS


class ApplicationClues(NamedTuple):
    """Facts by which one pod's application is named; "" if unknown. `workload` is
    namespace/Kind/name."""

    application: str = ""
    containers: tuple[str, ...] = ()
    workload: str = ""
    image: str = ""

    def name(self) -> str:
        """Return the application; "" if unknown."""
        known = next((APPLICATIONS[name] for name in self.containers if name in APPLICATIONS), "")
        return self.application or known or self.workload or image_name(self.image)


def image_name(image: str) -> str:
    """Return the image's name without registry, tag and digest, so that it stays the same when the
    image is moved or rebuilt."""
    path = image.partition("@")[0].rpartition("/")[2]
    return path.partition(":")[0]
