"""Small worlds of shared GPUs, and a policy that lends, for the tests beside this file."""

from weft.core.framework import Policy
from weft.lab.simulate.sharing.gpus import ByResidents
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.lab.simulate.sharing.pipeline import ScrapeOptions
from weft.lab.simulate.sharing.run import SharedScenario
from weft.model import Gpu, Node

CARD_MIB = 10_000
NO_SLOWDOWN = ByResidents((1000,))


class Lender(Policy):
    """A stand-in, not one of Weft's: lends whatever the ledger lets it lend."""

    name = "lender"
    reads = frozenset({"signals"})
    harvests = True


def node(gpus: int = 1) -> Node:
    """One node with cards of 10,000 MiB."""
    cards = tuple(Gpu(index, CARD_MIB, "V100", f"GPU-{index}") for index in range(gpus))
    return Node("node", cards, cpu_milli=64_000, memory_mib=64_000)


def job(
    uid: str, *phases: tuple[float, int], asks: int, comes_s: float = 0.0, kind: str = "kind"
) -> Job:
    """A job of phases (seconds alone, MiB) that comes at this second and starts at once."""
    made = tuple(JobPhase(round(s * SECOND_NS), mib, 0.2, 0.1, 0.3) for s, mib in phases)
    return Job(uid, kind, round(comes_s * SECOND_NS), asks, made)


def scenario(*jobs: Job, gpus: int = 1, **more: object) -> SharedScenario:
    """Jobs on one node, scraped every 10 s; without slowdown or forecasts (half of the
    work) unless told.
    """
    told = {
        "slowdown": NO_SLOWDOWN,
        "watching": ScrapeOptions(10 * SECOND_NS, forecasts=False),
        **more,
    }
    return SharedScenario((node(gpus),), jobs, **told)  # type: ignore[arg-type]
