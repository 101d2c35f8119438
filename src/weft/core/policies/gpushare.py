"""gpushare's best fit: on the node, the GPU with the least memory that is enough."""

from weft.core.framework import Policy


class GpuShare(Policy):
    """The smallest free memory that is enough, the lowest index of equals: what `choose_device`
    does unless overridden. The original leaves the node to others, so the first that fits wins.
    """

    name = "gpushare"
    summary = "on the first node that fits, the GPU with the least memory that is enough"
    source = "gpushare-scheduler-extender"
