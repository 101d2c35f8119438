"""Power draw of a card by how busy it is, and a card's use and energy summed over a run."""

import math

import msgspec

from weft.lab.simulate.sharing.job import SECOND_NS


class PowerModel(msgspec.Struct, frozen=True):
    """P = `idle_w` + `context_w` · [memory in use] + `busy_w` · a ** `gamma`, in watts.

    `a` is how busy the card is, 0 to 1. Kube-Knots takes power as linear in it (gamma 1).
    """

    idle_w: float
    context_w: float
    busy_w: float
    gamma: float = 1.0

    def watts(self, used: bool, activity: float) -> float:
        """Draw of a card that has memory in `used` and is so busy."""
        return (
            self.idle_w
            + (self.context_w if used else 0.0)
            + self.busy_w * math.pow(activity, self.gamma)
        )


V100_INFERENCE = PowerModel(27.1, 9.8, 17.2)
"""A V100 with the published MLPerf inference jobs (Ferikoglou et al., 54,396 s of logs), a =
GPU_UTIL. These jobs draw at most about 60 W of the card's 250 to 300: no model of other jobs."""


_MODELS = {
    "T4": PowerModel(10.0, 5.0, 55.0),
    "P100": PowerModel(26.0, 10.0, 214.0),
    "V100": PowerModel(27.1, 9.8, 263.1),
    "A100": PowerModel(55.0, 15.0, 330.0),
    "H100": PowerModel(70.0, 20.0, 610.0),
}
"""Idle and most watts of a card as vendors and users tell them, linear in use."""


def power_of(model: str) -> PowerModel:
    """The power of a card whose model's name begins so; a V100's of one that nobody knows."""
    powers = [power for name, power in _MODELS.items() if model.upper().startswith(name)]
    return powers[0] if powers else _MODELS["V100"]


class CardUse(msgspec.Struct):
    """A card's use since it was first looked at: integrals over time of what it does.

    `util_s` is GPU_UTIL · s, `energy_j` joules. What happens between two calls of `until` is as
    the first of them said.
    """

    now_ns: int
    util: float = 0.0
    watts: float = 0.0
    util_s: float = 0.0
    energy_j: float = 0.0

    def until(self, now_ns: int, util: float, watts: float) -> None:
        """Account for the time until `now_ns`; from then on the card is so busy and draws this."""
        passed_s = (now_ns - self.now_ns) / SECOND_NS
        self.util_s += self.util * passed_s
        self.energy_j += self.watts * passed_s
        self.now_ns, self.util, self.watts = now_ns, util, watts
