"""Whatever happens to hollow pods: phases only go forward, and GPU sums are what was told.

What a GPU should use is worked out from the statuses alone, as anyone who reads the API could.
"""

from typing import Any

from hollow_scene import CARD_MIB, T0, Scene, hollow, pod_json
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from fakes.hollow_pod import seconds_of
from fakes.hollow_profile import read_profile
from fakes.hollow_world import WorldOptions

CARDS = 2
MEMORY = ("", "0:0, 3:4000", "0:9000, 5:100, 8:9000", "0:100, 2:17000", "0:5000, 1:6000, 2:7000")

hollow_pods = st.fixed_dictionaries(
    {
        "gpu": st.integers(0, CARDS - 1),
        "mib": st.sampled_from((1, 500, 5000)),
        "policy": st.sampled_from(("Never", "OnFailure", "Always")),
        "start_up_s": st.sampled_from((0, 0, 1, 7)),
        "run_s": st.sampled_from((0, 1, 4, 15, 700)),
        "exit_code": st.sampled_from((0, 0, 1)),
        "stop_s": st.sampled_from(("0", "3", "never")),
        "memory_mib": st.sampled_from(MEMORY),
    }
)
happenings = st.one_of(
    st.tuples(st.just("add"), hollow_pods),
    st.tuples(st.sampled_from(("delete", "remove", "fail")), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.sampled_from((0, 1, 2, 5, 30, 900))),
    st.tuples(st.sampled_from(("restart", "away", "node lost", "node back")), st.just(40)),
)


def happen(scene: Scene, what: str, how: Any) -> None:
    names = sorted(scene.pods)
    chosen = names[how % len(names)] if names and isinstance(how, int) else ""
    if what == "add":
        name = f"p-{len(scene.told)}-{len(scene.pods)}-{scene.now}"
        told = {key: value for key, value in how.items() if value != ""}
        scene.put(pod_json(name, **told))
    elif what == "delete" and chosen:
        if "deletionTimestamp" not in scene.pods[chosen]["metadata"]:
            scene.delete(chosen, 5)
    elif what == "remove" and chosen:
        del scene.pods[chosen]
        scene.world.drop_pod(chosen)
    elif what == "fail" and chosen:
        scene.pods[chosen]["status"]["phase"] = "Failed"
        scene.put(scene.pods[chosen])
    elif what == "pass":
        scene.at(scene.now + how)
    elif what in ("restart", "away"):
        scene.now += how if what == "away" else 0
        scene.restart()
    elif what == "node lost":
        scene.world.drop_node("n")
    elif what == "node back":
        scene.world.put_node(scene.node, T0 + scene.now)
        scene.at(scene.now)


def expected(scene: Scene) -> list[int]:
    """MiB per GPU, from the profiles of the pods that are said to run."""
    used = [0] * CARDS
    for raw in scene.pods.values():
        pod = hollow(raw)
        told = (pod.status.container_statuses or [None])[0]
        if pod.ended or told is None or told.state.running is None:
            continue
        profile = read_profile(pod.metadata.annotations)
        second = T0 + scene.now - seconds_of(told.state.running.started_at or "")
        gpu = int((pod.metadata.annotations or {})["elasticgpu.io/container-main"])
        asked = int(pod.spec.containers[0].resources.limits["elasticgpu.io/gpu-memory"])  # type: ignore[index,arg-type]
        used[gpu] += profile.memory_at(second, asked)
    return used


@settings(max_examples=few_or_many(60, 300), deadline=None)
@given(st.lists(happenings, max_size=25))
def test_phases_go_forward_and_gpus_hold_the_sum(story: list[tuple[str, Any]]) -> None:
    scene = Scene(WorldOptions(admission=False), cards=CARDS)
    for what, how in story:
        happen(scene, what, how)
        for name in scene.told:
            assert forward(scene.phases(name)), scene.phases(name)
        use = [one.used_mib for one in scene.world.gpu_use()]
        if use:
            assert use == expected(scene)
            assert max(use) <= CARD_MIB


def forward(phases: list[str]) -> bool:
    """Pending, then Running, then one end; only a deletion may leave Running out."""
    order = {"Pending": 0, "Running": 1, "Succeeded": 2, "Failed": 2}
    steps = [order[phase] for phase in phases]
    ended = steps.count(2)
    return steps == sorted(steps) and ended <= 1 and ("Succeeded" not in phases or 1 in steps)
