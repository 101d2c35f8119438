"""A pod without a GPU: it uses CPU, memory and other resources of its node, and sees no GPU."""

from weft.dialects.dialect import DialectSettings
from weft.dialects.resources import PodWords, per_container
from weft.dialects.system import BaseDialect, build
from weft.model import PodRequest


class Plain(BaseDialect):
    """The dialect of pods that ask for no GPU."""

    name = "none"

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return a request for no GPU."""
        places = words.slots
        return build(words, self.name, per_container(places, [None] * len(places)))
