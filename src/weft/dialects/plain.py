"""A pod without a GPU: it holds CPU, memory and what else its node offers, and sees no GPU."""

from weft.dialects.containers import per_container
from weft.dialects.dialect import DialectSettings
from weft.dialects.requests import build
from weft.dialects.resources import slots
from weft.dialects.system import BaseDialect
from weft.model import PodManifest, PodRequest


class Plain(BaseDialect):
    """The dialect of pods that ask for no GPU."""

    name = "none"

    def parse(self, pod: PodManifest, settings: DialectSettings) -> PodRequest:
        """No GPU requests; every container without a GPU."""
        places = slots(pod)
        return build(pod, self.name, per_container(places, [None] * len(places)))
