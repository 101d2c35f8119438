"""Tells from the annotations of a pod's sandbox, which the runtime has, if the pod has a share."""

from weft.dialects import alnair, elastic, gpushare
from weft.model.annotations import DELIVERY, PLACEMENT, REQUIRED_PLUGINS
from weft.node.nri import nri_pb2 as nri

PLUGIN = "weft"
"""The agent's plugin name, which pods can require."""

_REQUIRED = REQUIRED_PLUGINS.partition("/")[0]
_MARKS = (DELIVERY, PLACEMENT, gpushare.PREFIX, elastic.ASSUMED, elastic.CONTAINER, alnair.GPU_ID)


def says_ours(pod: nri.PodSandbox) -> bool:
    """Return True if the pod's annotations say that it has a share: they require the agent's
    plugin, or contain a scheduler's choice of a GPU."""
    return any(
        key.startswith(_MARKS) or (key.startswith(_REQUIRED) and PLUGIN in text)
        for key, text in pod.annotations.items()
    )
