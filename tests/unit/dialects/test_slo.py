"""A latency-critical pod's SLO and its p99 alone say how much slower it may get."""

import random

import pytest
from manifests import ask, parsed

from weft.model.slowdown_limit import bound_on, limit_percent

CRITICAL = {"weft.dev/class": "latency-critical"}
SLO, SOLO = "weft.dev/slo-ms", "weft.dev/solo-p99-ms"


def read(resource: str = "weft.dev/gpu-memory", **marks: str):
    told = {f"weft.dev/{name.replace('_', '-')}": text for name, text in marks.items()}
    return parsed(ask(resource, 1), annotations=CRITICAL | told)


@pytest.mark.parametrize("resource", ["weft.dev/gpu-memory", "aliyun.com/gpu-mem"])
def test_one_number_for_all_gpus_or_one_a_model(resource: str) -> None:
    one = read(resource, slo_ms="80", solo_p99_ms="76").shape
    assert one.slowdown_limit == (("", 105),)
    assert bound_on(one.slowdown_limit, "NVIDIA-A100", 1.10) == 1.05
    some = read(resource, slo_ms="80", solo_p99_ms=" A100 = 40, T4=77").shape
    assert some.slowdown_limit == (("a100", 200), ("t4", 103))
    bounds = [
        bound_on(some.slowdown_limit, model, 1.10) for model in ("NVIDIA-Tesla-T4", "A100", "V100")
    ]
    assert bounds == [1.03, 1.10, 1.10], "never more than all may have"


@pytest.mark.parametrize(
    ("slo", "solo", "percent"),
    [
        ("115", "100", 115),
        ("1.15", "1", 115),
        ("105", "100", 105),
        ("114.999", "100", 114),
        ("0.0115", "0.01", 115),
        ("299", "100", 200),
        ("1e12", "1e-300", 10_000),
    ],
)
def test_slack_is_rounded_down(slo: str, solo: str, percent: int) -> None:
    assert read(slo_ms=slo, solo_p99_ms=solo).shape.slowdown_limit == (("", percent),)


def test_slacks_lie_on_a_coarse_grid_below_the_truth() -> None:
    dice, found = random.Random(3), set()
    for _ in range(20_000):
        slo, solo = 10 ** dice.uniform(-2, 6), 10 ** dice.uniform(-2, 3)
        percent = limit_percent(slo, solo)
        found.add(percent)
        assert 100 <= percent <= 10_000
        assert percent == 100 or percent <= 100 * slo / solo + 1e-6
    assert len(found) <= 200, "few companies"


def test_an_slo_below_the_p99_alone_leaves_nothing_and_that_is_said() -> None:
    for solo, where in (("100", "alone, so"), ("A100=50, T4=100", "alone on t4, so")):
        request = read(slo_ms="80", solo_p99_ms=solo)
        assert bound_on(request.shape.slowdown_limit, "T4", 1.10) == 1.0
        (note,) = [one for one in request.warnings if SLO in one]
        assert where in note
        assert "only with pods that are predicted not to slow it down" in note


WRONG = (
    "",
    "0",
    "-3",
    "soon",
    "nan",
    "inf",
    "1e13",
    "9" * 5_000,
    "T4=",
    "=4",
    "T4=40,",
    "T4=x",
    "T4\n\x1b[2J=4",
    "T" * 64 + "=4",
    ",".join(f"T{at}=4" for at in range(17)),
)


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("name", [SLO, SOLO])
def test_what_cannot_be_read_counts_for_nothing(name: str, text: str) -> None:
    marks = CRITICAL | {SLO: "80", SOLO: "40"} | {name: text}
    request = parsed(ask("weft.dev/gpu-memory", 1), annotations=marks)
    assert request.shape.slowdown_limit == ()
    notes = [note for note in request.warnings if name in note]
    assert len(notes) == (bool(text) or name == SLO)
    assert all(len(note) < 250 for note in notes)


def test_it_takes_both_and_a_latency_critical_pod() -> None:
    assert read(slo_ms="80").shape.slowdown_limit == ()
    assert not read(slo_ms="80").warnings, "that alone is for who is evicted"
    batch = parsed(ask("weft.dev/gpu-memory", 1), annotations={SLO: "80", SOLO: "40"})
    assert batch.shape.slowdown_limit == ()
    assert any(f"{SOLO} is ignored" in note for note in batch.warnings)
