"""`weft queues`: what each team's queue holds, waits for and may hold, from a snapshot."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from dialect_pods import ASKING, node, pod

from weft.model.annotations import PLACEMENT, PLACEMENT_COPY

CONFIG = """apiVersion: weft.dev/v1
kind: WeftConfiguration
queues:
  order: fair
  teams:
  - name: research
    weight: 2
    guarantee: {gpus: 0.4}
    limits: {gpus: 3}
  - name: idle
"""


def asking(name: str, queue: str = "", where: str = "", gpu: int = 0, mib: int = 8000) -> Any:
    """A pod with so much of a card; with a node, Weft placed it on that card."""
    made = pod(name, ASKING["weft"] | {"limits": {"weft.dev/gpu-memory": str(mib)}}, node=where)
    made["metadata"]["labels"] = {"weft.dev/queue": queue} if queue else {}
    made["spec"]["schedulerName"] = "weft"
    if where:
        shares = [[0, gpu, mib, 0, ""]]
        text = json.dumps(
            {"pod": f"uid-{name}", "node": where, "shares": shares}, separators=(",", ":")
        )
        made["metadata"]["annotations"] = {PLACEMENT: text, PLACEMENT_COPY: text}
    return made


PODS = (
    asking("r0", "research", "a", 0),
    asking("r1", "research", "a", 1),
    asking("o0", where="a", gpu=0, mib=4000),
    asking("r2", "research"),
)


def taken(weft: Weft, config: str, *options: str) -> str:
    path, state, settings = (
        weft.folder / name for name in ("objects.json", "state.json", "weft.yaml")
    )
    path.write_text(json.dumps({"items": [node("a", 2), *PODS]}))
    settings.write_text(config)
    said = weft("snapshot", state, "--from", path, "--config", settings, *options)
    assert said.code == 0, said.err
    return str(state)


def rows(weft: Weft, state: str) -> dict[str, Any]:
    said = weft("queues", "--snapshot", state, "-o", "json")
    assert said.code == 0, said.err
    return {row["queue"]: row for row in json.loads(said.out)["queues"]}


def test_each_queue_is_shown_with_what_it_holds_and_waits_for(weft: Weft) -> None:
    found = rows(weft, taken(weft, CONFIG))
    research = found["research"]
    assert (research["pods"], research["gpu_memory_mib"], research["weight"]) == (2, 16_000, 2)
    assert (research["waiting"], research["waiting_gpus"]) == (1, 1)
    assert research["gpus"] == 2 * 0.495  # the card has 16,160 MiB
    assert research["guarantee"] == [
        {"setting": "gpus", "held": research["gpus"], "configured": 0.4}
    ]
    assert research["borrowed_gpus"] == research["gpus"] / 2
    assert found["ml"]["pods"] == 1
    assert found["idle"]["pods"] == 0


def test_the_table_shows_queues_with_gpus_or_waiting_and_says_the_order(weft: Weft) -> None:
    said = weft("queues", "--snapshot", taken(weft, CONFIG))
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].split() == (
        [
            "queue",
            "weight",
            "share",
            "GPUs",
            "MiB",
            "borrowed",
            "waiting",
            "guarantee",
            "limits",
            "(held/most)",
        ]
    )
    assert {line.split()[0] for line in lines[1:4]} == {"research", "ml", "idle"}
    assert "1 (1 GPUs)" in said.out
    assert "Order fair" in said.out + said.err


def test_without_configured_queues_it_shows_namespaces_alike(weft: Weft) -> None:
    plain = CONFIG[: CONFIG.index("queues:")]
    found = rows(weft, taken(weft, plain))
    assert found["research"]["gpu_memory_mib"] == 16_000
    assert found["ml"]["gpu_memory_mib"] == 4_000
    assert not found["research"]["configured"]


def test_an_anonymous_snapshot_has_the_same_queues_under_other_names(weft: Weft) -> None:
    state = taken(weft, CONFIG, "--anonymous")
    found = rows(weft, state)
    assert "research" not in json.dumps(found)
    assert "research" not in Path(state).read_text()
    (research,) = [row for row in found.values() if row["weight"] == 2]
    assert (research["pods"], research["waiting"]) == (2, 1)


def test_the_table_fits_80_columns(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    state = taken(weft, CONFIG.replace("research", "a-team-of-a-rather-long-name"))
    monkeypatch.setenv("COLUMNS", "80")
    said = weft("queues", "--snapshot", state)
    assert said.code == 0, said.err
    assert [line for line in said.out.splitlines() if len(line) > 80] == []
    assert "a-team-of-a-rather-long-name" in said.out
    assert "…" not in said.out
