"""Refuses containers of pods with a share if the runtime did not ask the agent about them.

NRI ignores a plugin that is away. The guard is another plugin, ordered after the agent, in another
process:

runtime ──▶ 60-weft        the share, and the agent's mark on the container
            ──▶ 61-weft-guard  no mark, and the pod has a share: refused; the kubelet tries again

The mark is a secret of the two, so no manifest can contain it. While another agent, which this one
is to replace, delivers on this node, only that agent's guard checks.
"""

import logging
from collections.abc import Callable

from weft.model import WeftError
from weft.model.annotations import ASKED
from weft.model.log_fields import POD, PodReference, about
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.connection import CallError
from weft.node.nri.marks import PLUGIN, says_ours
from weft.node.nri.plugin import PluginOptions

log = logging.getLogger("weft.agent")

GUARD_OPTIONS = PluginOptions(name=f"{PLUGIN}-guard", index="61", creations_only=True)
_WHY = "the agent of this node is away: the container waits for its share"


class ShareGuard:
    """A `RuntimeHooks` that refuses containers without the agent's `mark` while `on_duty` returns
    True."""

    def __init__(self, mark: str, on_duty: Callable[[], bool]) -> None:
        self.refused = 0
        self._mark, self._on_duty = mark, on_duty

    async def synchronize(
        self, pods: list[nri.PodSandbox], containers: list[nri.Container]
    ) -> None:
        """Do nothing: the agent checks containers that already exist."""

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment:
        """Change nothing; `CallError` prevents the container from starting."""
        asked = container.annotations.get(ASKED) == self._mark
        if not asked and says_ours(pod) and self._on_duty():
            self.refused += 1
            who = about(PodReference(pod.namespace, pod.name, pod.uid))
            log.warning(
                "pod %s: container %s is refused: %s", who[POD], container.name, _WHY, extra=who
            )
            raise CallError(f"{PLUGIN}: {_WHY}")
        return nri.ContainerAdjustment()

    def validate(
        self, pod: nri.PodSandbox, container: nri.Container, adjust: nri.ContainerAdjustment
    ) -> str:
        """Not supported: a guard does not register for validation."""
        raise WeftError("a guard does not validate")

    def pod_event(self, event: int, pod: nri.PodSandbox) -> None:
        """Do nothing: a guard receives no pod events."""
