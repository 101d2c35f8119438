"""A policy that lends out what residents leave idle, wherever it fits."""

from weft.core.framework import Policy


class Harvesting(Policy):
    """Any GPU, idle memory included."""

    name = "harvesting"
    harvests = True
