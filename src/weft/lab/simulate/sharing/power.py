"""Power of a GPU by its activity, and a GPU's use and energy summed over a run."""

import math

import msgspec

from weft.lab.simulate.sharing.job import SECOND_NS


class PowerModel(msgspec.Struct, frozen=True):
    """P = `idle_w` + `context_w` · [memory in use] + `busy_w` · a ** `gamma`, in watts.

    `a` is the GPU's activity, 0 to 1. Kube-Knots assumes power linear in it (gamma 1)."""

    idle_w: float
    context_w: float
    busy_w: float
    gamma: float = 1.0

    def watts(self, used: bool, activity: float) -> float:
        """Return the power in watts at this activity; `used`: memory is in use."""
        return (
            self.idle_w
            + (self.context_w if used else 0.0)
            + self.busy_w * math.pow(activity, self.gamma)
        )


V100_INFERENCE = PowerModel(27.1, 9.8, 17.2)
"""A V100 with the published MLPerf inference jobs (Ferikoglou et al., 54,396 s of logs), a =
GPU_UTIL. These jobs draw at most about 60 W of the GPU's 250 to 300, so it fits no other jobs."""


_MODELS = {
    "T4": PowerModel(10.0, 5.0, 55.0),
    "P100": PowerModel(26.0, 10.0, 214.0),
    "V100": PowerModel(27.1, 9.8, 263.1),
    "A100": PowerModel(55.0, 15.0, 330.0),
    "H100": PowerModel(70.0, 20.0, 610.0),
}
"""Idle and maximal watts by GPU model, as vendors and users report them, linear in activity."""


def power_of(model: str) -> PowerModel:
    """Return the power model for a GPU model by its prefix; a V100's for unknown models."""
    powers = [power for name, power in _MODELS.items() if model.upper().startswith(name)]
    return powers[0] if powers else _MODELS["V100"]


class CardUse(msgspec.Struct):
    """A GPU's use, integrated over time.

    `util_s` is GPU_UTIL · s, `energy_j` joules. Between two calls of `until`, the values of the
    first apply."""

    now_ns: int
    util: float = 0.0
    watts: float = 0.0
    util_s: float = 0.0
    energy_j: float = 0.0

    def until(self, now_ns: int, util: float, watts: float) -> None:
        """Add the time until `now_ns` at the old values, and set the new ones."""
        passed_s = (now_ns - self.now_ns) / SECOND_NS
        self.util_s += self.util * passed_s
        self.energy_j += self.watts * passed_s
        self.now_ns, self.util, self.watts = now_ns, util, watts
