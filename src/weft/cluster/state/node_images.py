"""Reports the container images of nodes to the engine: once for each node, and again if they
change."""

from collections.abc import Sequence

from weft.core.engine import ImagesSeen
from weft.model.manifest import NodeImage

MOST_NAMES = 2_000
"""The most image names that are read of one node; by default kubelets report 50 images with up to 5
names each."""

Images = tuple[tuple[str, int], ...]


class ImageNews:
    """The images of nodes; `news` returns changes, each once. `moved`: there are changes."""

    def __init__(self) -> None:
        self._told: dict[str, Images] = {}
        self._new: dict[str, Images] = {}
        self.moved = False

    def take(self, node: str, images: Sequence[NodeImage] | None) -> None:
        """Set the node's images; None if it has none, or is gone."""
        found = [(name, image.size_bytes) for image in images or () for name in image.names or ()]
        if tuple(found[:MOST_NAMES]) == self._told.get(node, ()):
            self._new.pop(node, None)
        else:
            self._new[node] = tuple(found[:MOST_NAMES])
        self.moved = bool(self._new)

    def news(self) -> ImagesSeen | None:
        """Return the nodes whose images differ from those reported before; None if none do."""
        new, self._new, self.moved = self._new, {}, False
        for node, images in new.items():
            self._told[node] = images
            if not images:
                del self._told[node]
        return images_seen(new) if new else None

    def all(self) -> ImagesSeen | None:
        """Return all images reported so far, for another engine; None if there are none."""
        return images_seen(self._told) if self._told else None


def images_seen(by_node: dict[str, Images]) -> ImagesSeen:
    """Return the event with these images; each image is named once."""
    number: dict[tuple[str, int], int] = {}
    nodes = {
        node: tuple(number.setdefault(image, len(number)) for image in images)
        for node, images in sorted(by_node.items())
    }
    return ImagesSeen(tuple(number), nodes)
