"""Lists inputs that a policy needs and a simulation of a trace lacks.

Without its inputs a policy decides by requests alone, so a comparison would not be about it."""

from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.popularity import POPULAR_PODS
from weft.lab.simulate.on_record import Decider, profile_of
from weft.lab.simulate.scenario import Scenario
from weft.model.interference_table import INTERFERENCE, MYSTIC, PREDICTED

METRICS = "metrics"
SLOWDOWNS = "slowdowns"
APPLICATIONS = "applications"
DISTANCES = "distances"
DURATIONS = "expected durations"

REMEDIES = {
    METRICS: "a trace has none; `weft experiment run` simulates them",
    SLOWDOWNS: "give --interference FILE",
    APPLICATIONS: "the pod list needs the column application",
    DISTANCES: "give --mystic FILE",
    DURATIONS: "pods of a trace do not say how long they will take",
}
"""How to provide each input."""


def lacking(decider: Decider, scenario: Scenario) -> list[str]:
    """Return the inputs that the policies declare but do not get, in a fixed order."""
    profile, lacks = profile_of(decider), list[str]()
    inputs = {name: None for policy in profile.policies for name in policy.inputs}
    if not profile.reads.isdisjoint({"signals", "cluster"}):
        lacks.append(METRICS)
    if not {INTERFERENCE, PREDICTED}.isdisjoint(inputs):
        if scenario.interference is None:
            lacks.append(SLOWDOWNS)
        elif not any(pod.shape.application for pod in scenario.pods):
            lacks.append(APPLICATIONS)
    if MYSTIC in inputs and not scenario.mystic:
        lacks.append(DISTANCES)
    if "residencies" in profile.reads and not any(pod.shape.expected_s for pod in scenario.pods):
        lacks.append(DURATIONS)
    given = {TYPICAL_PODS, POPULAR_PODS, INTERFERENCE, PREDICTED, MYSTIC}
    return lacks + [f"input {name}" for name in inputs if name not in given]
