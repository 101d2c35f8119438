"""What all dialects do alike; each system's file says only what is its own."""

from typing import ClassVar

from msgspec.structs import replace

from weft.dialects import shares
from weft.dialects.dialect import Marks, Settings, TieBreak
from weft.dialects.resources import asks_for
from weft.model import Node, Placement, PodManifest, PodRequest, Share


class System:
    """A `Dialect` that lacks its `parse`.

    `resources` are the names its pods ask with. `asks_by_name`: whether its schedulerName alone
    makes a pod its own, without any resource or label (Genius and Kube-Knots pods have none).
    """

    name: str = ""
    scheduler_names: tuple[str, ...] = ()
    tie_break: TieBreak = "first"
    resources: ClassVar[tuple[str, ...]] = ()
    asks_by_name: ClassVar[bool] = False

    def carries(self, pod: PodManifest, settings: Settings) -> bool:
        """Whether the pod asks in this system's words, whatever its schedulerName."""
        return asks_for(pod, self.resources)

    def owns(self, pod: PodManifest, settings: Settings) -> bool:
        """Whether this pod carries this system's marks of asking."""
        by_name = self.asks_by_name and pod.spec.scheduler_name in self.scheduler_names
        return by_name or self.carries(pod, settings)

    def parse(self, pod: PodManifest, settings: Settings) -> PodRequest:
        """The request, or `BadInputError` naming field and value."""
        raise NotImplementedError

    def write(self, request: PodRequest, placement: Placement, node: Node, now_ns: int) -> Marks:
        """This system's marks, and Weft's own annotation beside them."""
        if not placement.shares:
            return Marks()
        own = self.marks(request, placement, node, now_ns)
        return replace(
            own, annotations={**own.annotations, shares.PLACEMENT: shares.encode(placement)}
        )

    def read(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """The placement that the pod's marks say it holds on `node`.

        Weft's annotation is believed first, then the system's own marks (a pod that the original
        system placed). None where neither says, where they are another pod's, or where a GPU they
        name is not on the node. A pod that asks for no GPU holds the rest of its shape.
        """
        if not request.shape.claims:
            return shares.placement_of(request, node, ())
        if shares.stale(pod, request, node):
            return None
        text = (pod.metadata.annotations or {}).get(shares.PLACEMENT)
        own = shares.decode(text, request, node) if text else None
        return own or self.recover(pod, request, node)

    def on_node(
        self, pod: PodManifest, request: PodRequest, node: Node, settings: Settings
    ) -> tuple[PodRequest, str]:
        """The request of a pod that is bound to `node`, as that node counts; and in words what
        contradicts itself in that, "" for nothing."""
        return request, ""

    def marks(self, request: PodRequest, placement: Placement, node: Node, now_ns: int) -> Marks:
        """The marks of this system alone; without any, only which GPUs each container sees."""
        return Marks(env=visible(request, placement))

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """The placement that this system's marks alone give; None where it writes none."""
        return None


def visible(request: PodRequest, placement: Placement) -> dict[str, dict[str, str]]:
    """NVIDIA_VISIBLE_DEVICES by container, as UUIDs."""
    return {
        name: {"NVIDIA_VISIBLE_DEVICES": ",".join(shares.identity(s) for s in held)}
        for name, held in by_container(request, placement).items()
    }


def by_container(request: PodRequest, placement: Placement) -> dict[str, list[Share]]:
    """The shares of each container that asked for a GPU, in the pod's order."""
    return {
        container.name: shares.of_container(request, container, placement)
        for container in request.containers
        if container.asked is not None
    }
