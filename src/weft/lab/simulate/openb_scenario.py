"""Reads a scenario from two openb files: a cluster and a workload."""

from pathlib import Path

from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.openb_own import usual_card_mib
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.timed import check_times
from weft.model import BadInputError


def read_scenario(nodes: Path, pods: Path, *, timed: bool) -> Scenario:
    """Read cluster and pods; with `timed`, pods need times.

    `BadInputError` if a file is malformed, no node has a GPU, or there is no pod."""
    cluster = read_nodes(nodes)
    scenario = Scenario(cluster, read_pods(pods, usual_card_mib(cluster)))
    if scenario.capacity_milli == 0:
        raise BadInputError(str(nodes), "has no GPU; at least one node needs gpu > 0")
    if not scenario.pods:
        raise BadInputError(str(pods), "has no pod below its header")
    if timed:
        check_times(scenario.pods, str(pods))
    return scenario
