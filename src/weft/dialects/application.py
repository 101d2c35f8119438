"""Names the application that a pod runs, by what is known of it.

In this order: Weft's annotation, the container names that Co-scheML knows, whose pod it is (the
workload that makes pods like it), the image. What nobody can name is no application.
"""

from typing import NamedTuple

from weft.dialects.coscheml import APPLICATIONS


class ApplicationClues(NamedTuple):
    """Names known of one pod; "" if nothing is. `workload` is namespace/Kind/name."""

    application: str = ""
    containers: tuple[str, ...] = ()
    workload: str = ""
    image: str = ""

    def name(self) -> str:
        """Return the application; "" if unknown."""
        known = next((APPLICATIONS[name] for name in self.containers if name in APPLICATIONS), "")
        return self.application or known or self.workload or image_name(self.image)


def image_name(image: str) -> str:
    """Return the image without registry, tag and digest: what stays when it is moved or built
    again."""
    path = image.partition("@")[0].rpartition("/")[2]
    return path.partition(":")[0]
