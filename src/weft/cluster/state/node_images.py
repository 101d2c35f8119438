"""The container images that nodes have, as news for the engine: a node's images are reported once,
and again where they are others."""

from collections.abc import Sequence

from weft.core.engine import ImagesSeen
from weft.model.manifest import NodeImage

MOST_NAMES = 2_000
"""So many names of a node's images are read; kubelets tell 250 of the largest 50, if nobody has
them tell more."""

Images = tuple[tuple[str, int], ...]


class ImageNews:
    """The images that nodes have; what is new of them is told by `news`, once. `moved`: there is
    some."""

    def __init__(self) -> None:
        self._told: dict[str, Images] = {}
        self._new: dict[str, Images] = {}
        self.moved = False

    def take(self, node: str, images: Sequence[NodeImage] | None) -> None:
        """The node has these images; None if it has none, or is gone."""
        found = [(name, image.size_bytes) for image in images or () for name in image.names or ()]
        if tuple(found[:MOST_NAMES]) == self._told.get(node, ()):
            self._new.pop(node, None)
        else:
            self._new[node] = tuple(found[:MOST_NAMES])
        self.moved = bool(self._new)

    def news(self) -> ImagesSeen | None:
        """Return the images of nodes that have others than was told before; None for nothing."""
        new, self._new, self.moved = self._new, {}, False
        for node, images in new.items():
            self._told[node] = images
            if not images:
                del self._told[node]
        return images_seen(new) if new else None

    def all(self) -> ImagesSeen | None:
        """Return all that was told, for another engine; None for nothing."""
        return images_seen(self._told) if self._told else None


def images_seen(by_node: dict[str, Images]) -> ImagesSeen:
    """Return the event: each image is named once."""
    number: dict[tuple[str, int], int] = {}
    nodes = {
        node: tuple(number.setdefault(image, len(number)) for image in images)
        for node, images in sorted(by_node.items())
    }
    return ImagesSeen(tuple(number), nodes)
