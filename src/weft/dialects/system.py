"""The part that all dialects share; each system's file says only what is its own."""

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from weft.dialects import evidence, shares
from weft.dialects.dialect import DialectSettings, PodAnnotations, TieBreak, UnitSettings
from weft.dialects.evidence import ChargedPlacement
from weft.dialects.resources import PodWords
from weft.model import Gpu, Node, Placement, PodManifest, PodRequest
from weft.model.annotations import PLACEMENT


class BaseDialect:
    """A `Dialect` that lacks its `parse`.

    `scheduler_names` are what it is called as a scheduler, its default first. `resources` are the
    names its pods ask with, `resource_pattern` matches these and those that Weft does not read.
    `asking_labels` are labels that do the same: what asks in any other way the API server cannot
    tell from other pods (`cluster/admission/`). `carried_by` are resources of others by which a pod
    may be its own as well: without any of all these a pod never is.
    `counted` is the one, of these or beside them, that
    brings a container all that it asks for; where it is left out, each brings its own.
    `asks_by_name`: whether its schedulerName alone makes a pod its own, without any resource or
    label (Genius and Kube-Knots pods have none). `pod_asks_as_one`: whether its pods ask for all
    their containers together, so that each may use all that the pod holds. `agent_annotation` is
    the annotation, if any, into which the system's agent on the node writes the card that it
    picked itself: Weft writes it only where it stands in for that agent (`annotate_started`), and
    `recover` reads it alone. `written` are the
    annotations and labels by which its schedulers and agents say which GPUs a pod has,
    `written_on_nodes` those that say which a node has; one that ends in * is a beginning. Nobody
    else may write them (`cluster/admission/`).

    Systems that go on scheduling beside Weft, and deliver what they gave (`served_by_itself`), keep
    their marks to themselves: `kept_marks` are annotations and labels that say what a bound pod
    has, and count as they were first seen, with `asking_annotations`, which ask as labels do.
    `unhonoured` are annotations that keep a pod waiting: Weft does not do what they ask.
    """

    name: str = ""
    scheduler_names: tuple[str, ...] = ()
    tie_break: TieBreak = "first"
    resources: ClassVar[tuple[str, ...]] = ()
    resource_pattern: ClassVar[str] = ""
    asking_labels: ClassVar[tuple[str, ...]] = ()
    asking_annotations: ClassVar[tuple[str, ...]] = ()
    carried_by: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[tuple[str, ...]] = ()
    asks_by_name: ClassVar[bool] = False
    pod_asks_as_one: ClassVar[bool] = False
    agent_annotation: ClassVar[str] = ""
    written: ClassVar[tuple[str, ...]] = ()
    unhonoured: ClassVar[tuple[str, ...]] = ()
    kept_marks: ClassVar[tuple[str, ...]] = ()
    served_by_itself: ClassVar[bool] = False
    written_on_nodes: ClassVar[tuple[str, ...]] = ()

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """True if the pod asks in this system's words, whatever its schedulerName."""
        return words.asks_for(self.resources)

    def yields(self, words: PodWords) -> bool:
        """True if the pod is another system's wherever it asks in that one's words as well."""
        return False

    def delivered_by(self, words: PodWords) -> tuple[str, ...]:
        """The words by which its node must deliver to a pod that names no resource."""
        return ()

    def owns(self, pod: PodManifest, settings: DialectSettings) -> bool:
        """True if this pod asks in this system's way."""
        by_name = self.asks_by_name and pod.spec.scheduler_name in self.scheduler_names
        return by_name or self.carries(PodWords(pod), settings)

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """One card in the resources of this system that a node advertises; none by default.

        `pieces`: the MIG instances it is cut into, 1 for a card that is not.
        """
        return {}

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """The request, or `BadInputError` naming field and value."""
        raise NotImplementedError

    def write(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """This system's marks, and Weft's own annotation beside them."""
        if not placement.shares:
            return PodAnnotations()
        own = self.annotate(request, placement, node, now_ns)
        return replace(own, annotations={**own.annotations, PLACEMENT: shares.encode(placement)})

    def read(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """The placement that the pod's marks are charged for on `node`; see `evidence.py`.

        None where they are another pod's, or do not say of every GPU which one of the node it is.
        A pod that asks for no GPU holds the rest of its shape.
        """
        charged = self.weigh(pod, request, node)
        return charged.placement if charged is not None and not charged.anywhere else None

    def weigh(
        self, pod: PodManifest, request: PodRequest, node: Node, bound_with: str = ""
    ) -> ChargedPlacement | None:
        """The same, with what is wrong with the marks. `bound_with` is the value of Weft's
        annotation that the pod was first seen bound with, where that is known."""
        text = evidence.agreed(pod, bound_with) if pod.spec.node_name == node.name else ""
        asks = bool(request.shape.gpu_requests)
        if not asks and not text:
            return ChargedPlacement(shares.placement_of(request, node, ()))
        if not text and evidence.anothers(pod, request, node):
            return None
        records = evidence.records(pod, request, node, text)
        own = self.recover(pod, request, node) if asks else None
        if own is not None and (self.agent_annotation or not records):
            return ChargedPlacement(
                own, moved=evidence.moved(request, records, own, self.agent_annotation)
            )
        return evidence.weigh(request, node, records, own, self.name) if records else None

    def wrong_marks(self, pod: PodManifest, request: PodRequest, node: Node) -> str:
        """Says what is wrong with this system's own marks of a bound pod; "" for nothing."""
        return ""

    def on_node(
        self, pod: PodManifest, request: PodRequest, node: Node, settings: DialectSettings
    ) -> tuple[PodRequest, str]:
        """The request of a pod that is bound to `node`, as that node counts; and in words what
        contradicts itself in that, "" for nothing."""
        return request, ""

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """The marks of this system alone; without any, only which GPUs each container sees."""
        return PodAnnotations(env=shares.visible(request, placement))

    def annotate_started(
        self,
        pod: PodManifest,
        request: PodRequest,
        placement: Placement,
        others: Sequence[PodManifest],
        now_ns: int,
    ) -> dict[str, str]:
        """The annotations that the system's device plugin writes when a container starts, as far
        as the pod lacks them. `others` are the other pods of its node."""
        return {}

    def env_when_bound(
        self, pod: PodManifest, request: PodRequest, env: dict[str, dict[str, str]]
    ) -> dict[str, dict[str, str]]:
        """The environment that `write` gives, with what the system's own agent chose instead."""
        return env

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """The placement that this system's marks alone give; None where it writes none."""
        return None
