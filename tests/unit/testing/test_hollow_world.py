"""Hollow pods in time, without an API."""

import msgspec
import pytest
from hollow_scene import CARD_MIB, MEMORY, T0, Scene, hollow, node_json, pod_json

from fakes.hollow_pod import time_text
from fakes.hollow_profile import HollowProfile
from fakes.hollow_world import WorldOptions
from weft.kube.structs import KubeNode


def test_a_pod_starts_runs_and_succeeds_when_its_profile_says() -> None:
    scene = Scene()
    scene.put(pod_json("a", mib=3000, start_up_s=4.5, run_s=60))
    assert scene.phases("a") == ["Pending"]
    assert scene.state("a") == {"waiting": {"reason": "ContainerCreating"}}
    assert scene.used() == 0
    scene.at(4.4)
    assert scene.phases("a") == ["Pending"]
    scene.at(4.5)
    assert scene.phases("a") == ["Pending", "Running"]
    assert scene.state("a") == {"running": {"startedAt": time_text(T0 + 4)}}
    assert scene.used() == 3000
    scene.at(64.4)
    assert scene.phases("a")[-1] == "Running"
    scene.at(64.5)
    assert scene.phases("a") == ["Pending", "Running", "Succeeded"]
    assert scene.state("a")["terminated"]["reason"] == "Completed"
    assert {told["startTime"] for told in scene.told["a"]} == {time_text(T0)}
    assert scene.used() == 0


def test_running_is_told_even_of_a_run_that_takes_no_time() -> None:
    scene = Scene()
    scene.put(pod_json("a", run_s=0))
    assert scene.phases("a") == ["Running", "Succeeded"]


def test_an_exit_code_is_a_failure() -> None:
    scene = Scene()
    scene.put(pod_json("a", run_s=1, exit_code=3))
    scene.at(1)
    assert scene.phases("a") == ["Running", "Failed"]
    ended = scene.state("a")["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")


def test_restarts_come_later_and_later_and_promptly_after_a_sound_run() -> None:
    scene = Scene()
    scene.put(pod_json("a", policy="OnFailure", run_s=5, exit_code=1))
    starts = []
    for second in range(700):
        before = len(scene.phases("a"))
        scene.at(second)
        for status in scene.told["a"][before:] if second else scene.told["a"]:
            if "running" in status["containerStatuses"][0]["state"]:
                starts.append(second)
    assert starts == [0, 5, 20, 45, 90, 175, 340, 645]
    assert set(scene.phases("a")) == {"Running"}
    assert scene.told["a"][-1]["containerStatuses"][0]["restartCount"] == 7

    sound = Scene(WorldOptions(profile=lambda _: HollowProfile(run_s=600, exit_code=1)))
    sound.put(pod_json("b", policy="Always"))
    sound.at(1800)
    assert sound.state("b") == {"running": {"startedAt": time_text(T0 + 1800)}}


def test_who_grows_beyond_the_card_fails_and_nobody_else() -> None:
    scene = Scene()
    scene.put(
        pod_json("quiet", mib=10_000, run_s=100),
        pod_json("greedy", mib=4000, run_s=100, memory_mib="0:1000, 10:6384, 20:6385"),
    )
    scene.at(19)
    assert scene.used() == CARD_MIB
    scene.at(20)
    assert scene.phases("greedy") == ["Running", "Failed"]
    ended = scene.state("greedy")["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (1, "Error")
    assert "message" not in ended  # its container's log stays where it is
    assert scene.phases("quiet") == ["Running"]
    assert scene.used() == 10_000


def test_who_ran_out_of_memory_restarts_where_the_policy_says_so_and_may_say_why() -> None:
    scene = Scene()
    greedy = pod_json("a", policy="OnFailure", memory_mib=f"0:1, 7:{CARD_MIB + 1}")
    greedy["spec"]["containers"][0]["terminationMessagePolicy"] = "FallbackToLogsOnError"
    scene.put(greedy)
    scene.at(7)
    assert scene.phases("a") == ["Running", "Running"]
    told = scene.told["a"][-1]["containerStatuses"][0]
    assert told["restartCount"] == 1
    ended = told["lastState"]["terminated"]
    assert ended["message"] == f"CUDA out of memory: GPU 0 has a total capacity of {CARD_MIB} MiB"
    assert scene.used() == 1


def test_what_ends_makes_room_for_what_grows_at_the_same_moment() -> None:
    scene = Scene()
    scene.put(pod_json("grows", memory_mib="0:1, 10:16000"), pod_json("ends", mib=15_000, run_s=10))
    scene.at(11)
    assert scene.phases("ends")[-1] == "Succeeded"
    assert scene.phases("grows") == ["Running"]


def test_memory_may_be_a_function_of_time() -> None:
    scene = Scene(WorldOptions(profile=lambda _: HollowProfile(memory_mib=lambda s: int(100 * s))))
    scene.put(pod_json("a"))
    scene.at(50.5)
    assert scene.used() == 5000
    scene.at(163)
    assert scene.phases("a") == ["Running"]
    scene.at(164)
    assert scene.phases("a") == ["Running", "Failed"]


@pytest.mark.parametrize(
    ("stop_s", "ends_s", "code"),
    [("0", 0, 143), ("5", 5, 143), ("never", 30, 137), ("60", 30, 137)],
)
def test_a_deleted_pod_ends_by_itself_or_is_killed_and_is_then_removed(
    stop_s: str, ends_s: int, code: int
) -> None:
    scene = Scene()
    scene.put(pod_json("a", policy="Always", stop_s=stop_s))
    scene.at(100)
    scene.delete("a")
    if ends_s:
        scene.at(100 + ends_s - 0.1)
        assert scene.used() == 1000
        assert "a" in scene.pods
    scene.at(100 + ends_s)
    assert scene.phases("a") == ["Running", "Failed"]
    assert scene.state("a")["terminated"]["exitCode"] == code
    assert scene.used() == 0
    assert scene.pods == {}


def test_a_second_deletion_with_less_grace_is_heeded() -> None:
    scene = Scene()
    scene.put(pod_json("a", stop_s="never"))
    scene.delete("a", 300)
    scene.at(10)
    scene.delete("a", 5)
    scene.at(14.9)
    assert "a" in scene.pods
    scene.at(15)
    assert scene.pods == {}


def test_a_deletion_that_is_told_again_starts_no_new_grace() -> None:
    scene = Scene()
    scene.put(pod_json("a", stop_s="never"))
    scene.delete("a", 30)
    scene.at(20)
    scene.put(scene.pods["a"])
    scene.at(30)
    assert scene.pods == {}


@pytest.mark.parametrize("seconds", [1, 20])
def test_a_pod_deleted_before_or_between_its_runs_ends_at_once(seconds: float) -> None:
    scene = Scene()
    scene.put(pod_json("a", policy="Always", start_up_s=10, run_s=1, exit_code=1, stop_s=20))
    scene.at(seconds)
    if seconds > 10:
        assert scene.state("a") == {"waiting": {"reason": "CrashLoopBackOff"}}
    scene.delete("a")
    assert scene.phases("a")[-1] == "Failed"
    assert scene.pods == {}


def test_a_pod_that_is_gone_or_ended_by_someone_else_holds_nothing() -> None:
    scene = Scene()
    scene.put(pod_json("gone"), pod_json("evicted"))
    assert scene.used() == 2000
    scene.world.drop_pod("gone")
    assert scene.used() == 1000
    scene.pods["evicted"]["status"]["phase"] = "Failed"
    scene.put(scene.pods["evicted"])
    assert scene.used() == 0
    scene.at(1000)
    assert scene.phases("evicted") == ["Running"]


def test_a_late_write_of_its_own_does_not_bring_a_pod_back_to_life() -> None:
    """A lost request may come through after the next ones: then the end is written again."""
    scene = Scene()
    scene.put(pod_json("a", run_s=1), pod_json("refused", run_s="x"))
    scene.at(1)
    for name in ("a", "refused"):
        scene.pods[name]["status"] = {"phase": "Running"}
        scene.put(scene.pods[name])
    assert scene.phases("a") == ["Running", "Succeeded", "Succeeded"]
    assert scene.told["a"][1] == scene.told["a"][2]
    assert [told["reason"] for told in scene.told["refused"]] == ["BadHollowProfile"] * 2


def test_more_devices_than_there_are_are_refused_in_the_kubelets_words() -> None:
    scene = Scene()
    scene.put(pod_json("a", mib=16_310), pod_json("b", mib=300))
    assert scene.phases("b") == ["Failed"]
    assert scene.told["b"][0]["reason"] == "UnexpectedAdmissionError"
    assert scene.told["b"][0]["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{MEMORY}. Requested: 300, Available: 74, which is unexpected"
    )
    without_plugins = Scene(WorldOptions(device_plugins=False))
    without_plugins.put(pod_json("a", mib=16_310), pod_json("b", mib=300))
    assert without_plugins.told["b"][0]["reason"] == f"OutOf{MEMORY}"
    lenient = Scene(WorldOptions(admission=False))
    lenient.put(pod_json("a", mib=16_310), pod_json("b", mib=300, memory_mib="10"))
    assert lenient.phases("b") == ["Running"]


def test_an_amount_that_cannot_be_read_is_not_counted_either() -> None:
    scene = Scene()
    scene.node = msgspec.convert(node_json(**{MEMORY: "much"}), KubeNode, strict=False)
    scene.restart()
    scene.put(pod_json("a", mib=16_000), pod_json("b", mib=300))
    assert scene.phases("b") == ["Running"]


def test_an_ended_pod_gives_its_devices_and_cards_back() -> None:
    scene = Scene()
    scene.put(pod_json("a", gpu=None, limits={"nvidia.com/gpu": "1"}, run_s=5))
    scene.at(5)
    scene.put(pod_json("b", gpu=None, limits={"nvidia.com/gpu": "1"}))
    assert scene.phases("b") == ["Running"]
    assert scene.used() == CARD_MIB


def test_a_resource_that_nobody_advertises_is_not_counted() -> None:
    scene = Scene()
    scene.put(pod_json("a", gpu=None, limits={"example.com/other": "5"}))
    assert scene.phases("a") == ["Running"]


def test_a_profile_that_cannot_be_read_fails_the_pod_and_says_why() -> None:
    scene = Scene()
    scene.put(pod_json("a", run_s="soon"))
    assert scene.phases("a") == ["Failed"]
    assert scene.told["a"][0]["reason"] == "BadHollowProfile"
    assert "weft.dev/hollow-run-s: 'soon'" in scene.told["a"][0]["message"]


def test_whole_cards_that_nobody_wrote_down_are_the_first_idle_ones() -> None:
    scene = Scene(cards=3)
    two = pod_json("two", gpu=None, limits={"nvidia.com/gpu": "2"}, run_s=10)
    scene.put(pod_json("shares", gpu=1, mib=500), two)
    assert [use.used_mib for use in scene.world.gpu_use()] == [CARD_MIB, 500, CARD_MIB]
    assert scene.world.gpu_use()[0].by_pod == {"d/two": CARD_MIB}
    scene.at(10)
    assert [use.used_mib for use in scene.world.gpu_use()] == [0, 500, 0]


def test_pods_wait_for_their_node_and_are_forgotten_with_it() -> None:
    scene = Scene()
    scene.world.drop_node("n")
    scene.put(pod_json("a", run_s=10))
    assert scene.told == {}
    scene.world.put_node(scene.node, T0 + 5)
    scene.at(5)
    assert scene.phases("a") == ["Running"]
    scene.world.drop_node("n")
    scene.at(20)
    assert scene.phases("a") == ["Running"]
    assert scene.world.gpu_use() == []


def test_a_restarted_hollow_kubelet_goes_on_where_it_was() -> None:
    scene = Scene()
    scene.put(
        pod_json("starts", start_up_s=30, run_s=5),
        pod_json("runs", start_up_s=5, run_s=40),
        pod_json("crashes", policy="Always", run_s=8, exit_code=1),
        pod_json("again", policy="OnFailure", run_s=15, exit_code=1),
        pod_json("over", run_s=1),
        pod_json("grows", run_s=1000, memory_mib="0:100, 9:200, 50:300"),
    )
    scene.at(20)
    used, count = scene.used(), {name: len(told) for name, told in scene.told.items()}
    scene.restart()
    assert scene.used() == used
    assert {name: len(told) for name, told in scene.told.items()} == count
    scene.at(26)
    assert scene.told["crashes"][-1]["containerStatuses"][0]["restartCount"] == 2
    scene.at(30)
    assert scene.state("again") == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert scene.told["again"][-1]["containerStatuses"][0]["restartCount"] == 1
    scene.at(44)
    assert scene.phases("runs") == ["Pending", "Running"]
    assert scene.phases("starts") == ["Pending", "Running", "Succeeded"]
    scene.at(45)
    assert scene.phases("runs") == ["Pending", "Running", "Succeeded"]
    assert scene.told["runs"][-1]["containerStatuses"][0]["state"]["terminated"][
        "finishedAt"
    ] == time_text(T0 + 45)
    scene.at(50)
    assert scene.world.gpu_use()[0].by_pod["d/grows"] == 300


def test_after_a_restart_those_that_ran_have_their_devices_before_those_that_come() -> None:
    scene = Scene()
    scene.put(pod_json("z", gpu=None, limits={"nvidia.com/gpu": "1"}))
    scene.pods["a"] = pod_json("a", gpu=None, limits={"nvidia.com/gpu": "1"})
    scene.restart()
    assert scene.world.gpu_use()[0].by_pod == {"d/z": CARD_MIB}
    assert scene.phases("a") == ["Failed"]


def test_pods_that_ran_go_on_though_the_node_advertises_nothing_any_more() -> None:
    scene = Scene()
    scene.put(pod_json("a"))
    no_plugin = node_json(**{MEMORY: "0"})
    scene.node = msgspec.convert(no_plugin, KubeNode, strict=False)
    scene.restart()
    assert scene.phases("a") == ["Running"]
    assert scene.used() == 1000


def test_what_was_missed_while_it_was_away_is_made_up_for_in_order() -> None:
    """`first` ended before `second` grew: nobody is killed, however late both are noticed."""
    scene = Scene()
    scene.put(
        pod_json("second", run_s=90, memory_mib="0:1, 50:16000"),
        pod_json("first", run_s=40, mib=15_000),
    )
    scene.at(10)
    scene.now = 100
    scene.restart()
    assert scene.phases("first") == ["Running", "Succeeded"]
    assert scene.phases("second") == ["Running", "Succeeded"]
    ended = [scene.state(name)["terminated"]["finishedAt"] for name in ("first", "second")]
    assert ended == [time_text(T0 + 40), time_text(T0 + 90)]


def test_a_deletion_it_did_not_live_to_finish_is_finished_by_the_next() -> None:
    scene = Scene()
    scene.put(pod_json("stops", stop_s=8), pod_json("ended", run_s=1))
    scene.at(5)
    for name in ("stops", "ended"):
        scene.pods[name]["metadata"] |= {
            "deletionTimestamp": time_text(T0 + 35),
            "deletionGracePeriodSeconds": 30,
        }
    scene.restart()
    assert set(scene.pods) == {"stops"}
    scene.at(13)
    assert scene.phases("stops") == ["Running", "Failed"]
    assert scene.pods == {}


def test_a_pod_is_removed_once_however_often_it_is_told_of() -> None:
    scene = Scene()
    pod = pod_json("a")
    scene.put(pod)
    pod["metadata"]["deletionTimestamp"] = time_text(T0 + 30)
    removals = []
    for _ in range(3):
        scene.world.put_pods([hollow(pod)], T0)
        removals += [write for write in scene.world.advance(T0) if write.status is None]
    assert len(removals) == 1


def test_a_pod_without_marks_uses_no_gpu_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.put(pod_json("a", gpu=None))
    assert scene.phases("a") == ["Running"]
    assert scene.used() == 0
    assert "d/a on n: no mark says which GPU it has, so it uses none" in caplog.text


def test_the_restart_policy_is_always_where_the_pod_says_nothing() -> None:
    pod = pod_json("a")
    del pod["spec"]["restartPolicy"]
    assert hollow(pod).restarts_after == (True, True)
