"""The parts of the score of a place are said in words, of least-stranding and of auto."""

import numpy as np
import pytest

from weft.core.engine import Engine, PolicyInput, SignalsChanged
from weft.core.explain.counterfactual import PlacementQuestion
from weft.core.explain.score_parts import score_in_words
from weft.core.framework import Profile
from weft.core.framework.popularity import POPULAR_PODS
from weft.core.framework.signals import FRESH, MISSING, snapshot
from weft.core.policies.auto import Auto
from weft.core.policies.least_stranding import LeastStranding
from weft.model import Placement, PodRequest, Shape, Share
from weft.testing import node, shape

USUAL = [(shape(milli=500, cpu_milli=4000), 4), (shape(gpus=8, cpu_milli=32_000), 1)]


def _words(wanted: Shape, gpu: int, *, gpus: int = 9, cpu_milli: int = 96_000) -> str:
    """The words on a pod on this GPU of a node of which half of GPU 0 is held."""
    profile = Profile("weft", [LeastStranding()])
    engine = Engine([profile], [node("a", gpus=gpus, memory_mib=10_000, cpu_milli=cpu_milli)])
    engine.ledger.adopt(Placement("held", "a", (Share(0, 0, 0, 500),)))
    engine.handle(PolicyInput(POPULAR_PODS, [(each, count) for each, count in USUAL]), 0)
    question = PlacementQuestion(PodRequest("p", "p", wanted), profile, 1)
    return "\n".join(
        score_in_words(engine, question, "a", (Share(0, gpu, 0, wanted_milli(wanted)),))
    )


def wanted_milli(wanted: Shape) -> int:
    return wanted.gpu_requests[0].milli


def test_a_share_that_completes_a_gpu_keeps_the_slot() -> None:
    words = _words(shape(milli=500), 0)
    assert "completes GPU 0 exactly" in words
    assert "keeps an 8-GPU slot free" in words
    assert "CPU and memory are enough for the GPUs left" in words


def test_a_share_on_an_idle_gpu_takes_it_from_the_slot() -> None:
    words = _words(shape(milli=300), 1)
    assert "leaves 70 % of GPU 1, worth 50 % of a GPU" in words
    assert "leaves 7 of 8 idle GPUs for pods with several GPUs" in words


def test_it_says_for_how_many_gpus_cpu_runs_short() -> None:
    """Usual pods ask 4,800 thousandths of a core a GPU; seven tenths of that count."""
    words = _words(shape(milli=500, cpu_milli=8000), 0, cpu_milli=20_000)
    assert "short of CPU for 4.4 of the 8.0 GPUs left, without this pod 2.5 of 8.5" in words
    (line,) = (line for line in words.splitlines() if "short of CPU" in line)
    assert line.startswith("-")


def test_cpu_that_is_short_is_no_plus() -> None:
    """A pod that takes a GPU and little CPU leaves more CPU for each of the others."""
    words = _words(shape(milli=500, cpu_milli=100), 0, cpu_milli=20_000)
    (line,) = (line for line in words.splitlines() if "CPU" in line)
    assert line.startswith("+")
    eased = (
        "eases a shortage: short of CPU for 2.1 of the 8.0 GPUs left, without this pod 2.5 of 8.5"
    )
    assert f": {eased}" in line
    words = _words(shape(milli=500, cpu_milli=100), 0, gpus=1, cpu_milli=1000)
    eased = "eases a shortage: short of CPU for 0.0 of the 0.0 GPUs left, without this pod 0.2 of"
    assert f"{eased} 0.5" in words


@pytest.mark.parametrize(("turnover", "says"), [(0.0, "0%"), (0.2, "20%"), (0.9, "90%")])
def test_it_says_what_turnover_was_learnt_and_how_it_decides(turnover: float, says: str) -> None:
    setting = {"0%": "inflation", "20%": "between living and inflation", "90%": "living"}[says]
    for policy in (LeastStranding(), Auto(), LeastStranding(setting="living")):
        profile = Profile("weft", [policy])
        engine = Engine([profile], [node("a", gpus=2, memory_mib=10_000, cpu_milli=96_000)])
        engine.assess(profile, PodRequest("p", "p", shape(milli=500)))
        policy.take_turnover(turnover)
        question = PlacementQuestion(PodRequest("p", "p", shape(milli=500)), profile, 1)
        words = "\n".join(score_in_words(engine, question, "a", (Share(0, 0, 0, 500),)))
        told = f"learnt turnover {says}: the part of what pods hold that others had freed"
        assert (told in words) == (not _fixed(policy))
        assert (f"objective: as with setting={setting}" in words) == (not _fixed(policy))


def _fixed(policy: object) -> bool:
    return isinstance(policy, LeastStranding) and policy._setting != "learnt"


def test_auto_says_what_is_stranded_and_the_load() -> None:
    profile = Profile("weft", [Auto()])
    gpus = [("a", 0), ("a", 1)]
    seen = {"sm_active_ratio": (np.array([0.5, 0.0]), np.array([FRESH, MISSING], dtype=np.int8))}
    engine = Engine([profile], [node("a", gpus=2, memory_mib=10_000, cpu_milli=96_000)])
    engine.ledger.adopt(Placement("held", "a", (Share(0, 0, 0, 500), Share(0, 1, 0, 500))))
    engine.handle(PolicyInput(POPULAR_PODS, [(each, count) for each, count in USUAL]), 0)
    engine.handle(SignalsChanged(snapshot(1, 0, gpus, seen)), 0)
    question = PlacementQuestion(PodRequest("p", "p", shape(milli=500)), profile, 1)
    score = int(engine.assess(profile, question.pod).raw[0][0])
    points = {}
    for gpu in (0, 1):
        lines = score_in_words(engine, question, "a", (Share(0, gpu, 0, 500),))
        points[gpu] = sum(float(line.partition(":")[0]) for line in lines)
        assert any(line.endswith(f"completes GPU {gpu} exactly") for line in lines)
        said = [
            "GPU 0 has a measured load of 33%",
            "GPU 1's load is not measured; 50% of it is free",
        ]
        assert any(line.endswith(said[gpu]) for line in lines), lines
    assert max(points.values()) == pytest.approx(score - 50_000, abs=2)
