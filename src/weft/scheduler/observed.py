"""What this room asks of a live cluster beyond what every host asks: its parts, to tell of them."""

from collections.abc import Sequence
from typing import Any, Protocol

from weft.kube.bind import Binder
from weft.kube.client import ApiClient
from weft.live.ends import Ends
from weft.live.feeds import Feed
from weft.live.guarding import Guard
from weft.live.interface import LiveCluster
from weft.live.lessons import Lessons
from weft.live.nodes import NodeView
from weft.live.pods import PodView
from weft.live.recall import Recall
from weft.live.stuck import Stuck


class Observed(LiveCluster, Protocol):
    """A live cluster that shows how it is doing. Everything here is only read."""

    binder: Binder
    guard: Guard
    recall: Recall
    ends: Ends
    lessons: Lessons

    @property
    def client(self) -> ApiClient:
        """Whose answers are counted, and whose clock it is."""
        ...

    @property
    def pods(self) -> PodView:
        """The pods there are, the bad ones, and what was assumed of some."""
        ...

    @property
    def nodes(self) -> NodeView:
        """The nodes there are."""
        ...

    @property
    def feeds(self) -> Sequence[Feed[Any]]:
        """The list-watches: how they are doing."""
        ...

    def stuck(self) -> list[Stuck]:
        """Pods that hold GPUs and cannot end by themselves, the longest first."""
        ...
