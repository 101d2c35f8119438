"""Series find their GPU by UUID, by node and index, or not at all; duplicates count once."""

import numpy as np
import pytest
from telemetry_world import NOW_S, answer, node, one

from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import decode, labels_of, readable
from weft.telemetry.meaning.join import Devices, JoinFailure, SeriesJoiner

USED = "DCGM_FI_DEV_FB_USED"


def devices(*, uuids: bool = True) -> Devices:
    return Devices([node("a", uuids=uuids), node("b", uuids=uuids)], {"10.0.0.2": "b"})


@pytest.mark.parametrize(
    ("labels", "row"),
    [
        ({"UUID": "GPU-b-1", "Hostname": "elsewhere", "gpu": "0"}, 3),
        ({"uuid": "gpu-b-1"}, 3),
        ({"Hostname": "a", "gpu": "1"}, 1),
        ({"hostname": "a.example.org", "gpu": "1"}, 1),
        ({"Hostname": "dcgm-exporter-x7k2p", "node": "b", "gpu": "0"}, 2),
        ({"kubernetes_node": "b", "id": "1"}, 3),
        ({"instance": "10.0.0.2:9400", "device": "nvidia1"}, 3),
        ({"nodeName": "a", "minor_number": "1"}, 1),
        ({"Hostname": "a", "gpu": "7"}, JoinFailure.GPU),
        ({"Hostname": "a", "gpu": "0", "UUID": "GPU-that-was-replaced"}, JoinFailure.GPU),
        ({"instance": "10.9.9.9:9400", "gpu": "0"}, JoinFailure.NODE),
        ({"gpu": "0"}, JoinFailure.NODE),
        ({"UUID": "GPU-a-0", "GPU_I_ID": "3", "GPU_I_PROFILE": "1g.5gb"}, JoinFailure.MIG),
    ],
)
def test_labels_in_all_spellings(labels: dict[str, str], row: int | JoinFailure) -> None:
    assert devices().find(labels) == row


def test_without_uuids_of_its_own_a_nodes_gpus_go_by_index() -> None:
    assert devices(uuids=False).find({"Hostname": "a", "gpu": "1", "UUID": "GPU-x"}) == 1


def test_a_mig_instance_is_found_by_its_own_uuid_only() -> None:
    found = Devices([Node("a", (Gpu(0, 1000, uuid="GPU-0"), Gpu(1, 500, uuid="MIG-1", parent=0)))])
    mig = {"GPU_I_ID": "3", "UUID": "GPU-0"}
    assert found.find(mig) is JoinFailure.MIG
    assert found.find(mig | {"dra_mig_device_uuid": "MIG-1"}) == 1
    assert found.find({"GPU_I_ID": "3", "UUID": "MIG-1"}) == 1


def joined(*series: object) -> dict[Metric, list[tuple[int, float, float]]]:
    joiner = SeriesJoiner(devices())
    found = {}
    for told in joiner.join(answer(*series)):  # type: ignore[arg-type]
        columns = told.rows.tolist(), told.times.tolist(), told.values.tolist()
        found[told.metric] = list(zip(*columns, strict=True))
    return found


def test_a_device_value_told_once_for_each_pod_is_not_added_up() -> None:
    pods = [one(USED, 500, UUID="GPU-a-0", pod=f"p{n}", namespace="d") for n in range(3)]
    assert joined(*pods) == {Metric.MEMORY_USED_MIB: [(0, NOW_S, 500.0)]}


def test_beside_the_pods_own_values_the_device_counts() -> None:
    whole = one(USED, 700, UUID="GPU-a-0")
    own = [one(USED, mib, UUID="GPU-a-0", pod=f"p{mib}", namespace="d") for mib in (0, 300, 400)]
    assert joined(own[0], whole, *own[1:]) == {Metric.MEMORY_USED_MIB: [(0, NOW_S, 700.0)]}


def test_processes_are_added_up_and_no_card_is_more_than_busy() -> None:
    def process(pid: int, util: int, gpu: str) -> object:
        return one("alnair_gpu_util", util, gpu_uuid=gpu, pid=str(pid))

    found = joined(
        process(1, 30, "GPU-a-0"),
        process(2, 45, "GPU-a-0"),
        process(3, 80, "GPU-b-1"),
        process(4, 60, "GPU-b-1"),
    )
    assert found == {Metric.GPU_UTIL_RATIO: [(0, NOW_S, 0.75), (3, NOW_S, 1.0)]}


def test_of_two_exporters_the_preferred_name_counts_gpu_by_gpu() -> None:
    old = [one("dcgm_fb_used", 1, UUID=f"GPU-{n}-0") for n in "ab"]
    assert joined(*old, one(USED, 2, UUID="GPU-a-0")) == {
        Metric.MEMORY_USED_MIB: [(0, NOW_S, 2.0), (2, NOW_S, 1.0)]
    }


def test_blanks_and_unjoined_series_bring_nothing_and_are_counted() -> None:
    joiner = SeriesJoiner(devices())
    found = joiner.join(
        answer(
            one(USED, 9223372036854775794, UUID="GPU-a-0"),
            one(USED, float("nan"), UUID="GPU-a-1"),
            one(USED, -1, UUID="GPU-b-0"),
            one(USED, 5, Hostname="nowhere", gpu="0"),
            one("DCGM_FI_DEV_SOMETHING", 5, UUID="GPU-a-0"),
            one(USED, 6, UUID="GPU-b-1"),
        )
    )
    assert [(one.rows.tolist(), one.values.tolist()) for one in found] == [([3], [6.0])]
    assert joiner.unjoined == {JoinFailure.NODE: 1, JoinFailure.NAME: 1}
    assert "nowhere" in joiner.examples[JoinFailure.NODE]


def test_two_looks_join_alike_and_count_afresh() -> None:
    joiner = SeriesJoiner(devices())
    told = answer(one(USED, 5, UUID="GPU-a-1", Hostname="a"), one(USED, 5, Hostname="x"))
    for _ in range(2):
        joiner.begin()
        assert [one.rows.tolist() for one in joiner.join(told)] == [[1]]
        assert joiner.unjoined == {JoinFailure.NODE: 1}


def residents(row: int, namespace: str, pod: str) -> str:
    return {(0, "d", "p"): "uid-p", (0, "d", "q"): "uid-q"}.get((row, namespace, pod), "")


def test_pods_own_values_are_told_where_the_ledger_knows_the_pod() -> None:
    joiner = SeriesJoiner(devices())
    told = answer(
        one(USED, 700, UUID="GPU-a-0", pod="dcgm-exporter-x", namespace="monitoring"),
        one(USED, 300, UUID="GPU-a-0", exported_pod="p", exported_namespace="d", pod="dcgm-e"),
        one(USED, 400, UUID="GPU-a-0", exported_pod="q", exported_namespace="d", pod="dcgm-e"),
        one(USED, 50, UUID="GPU-a-0", exported_pod="stranger", exported_namespace="d", pod="e"),
    )
    found = joiner.pods(told, residents)
    assert {(one.pod, one.row, one.value) for one in found} == {
        ("uid-p", 0, 300.0),
        ("uid-q", 0, 400.0),
    }


def test_a_device_value_under_a_pods_name_is_no_value_of_the_pod() -> None:
    """Older exporters tell the device's value once for each pod and nothing without a pod."""
    pods = [one(USED, 500, UUID="GPU-a-0", pod=pod, namespace="d") for pod in "pq"]
    assert SeriesJoiner(devices()).pods(answer(*pods), residents) == []


@pytest.mark.parametrize(
    ("value", "at_s"),
    [
        (float("nan"), NOW_S),
        (9223372036854775794, NOW_S),
        (-1, NOW_S),
        (300, float("nan")),
        (300, float("inf")),
    ],
)
def test_a_pods_sample_that_says_nothing_is_left_out(value: float, at_s: float) -> None:
    told = answer(
        one(USED, 700, UUID="GPU-a-0"),
        one(USED, value, UUID="GPU-a-0", pod="p", namespace="d"),
        one(USED, 400, UUID="GPU-a-0", pod="q", namespace="d"),
    )
    told = told._replace(times=np.array([NOW_S, at_s, NOW_S]))
    found = SeriesJoiner(devices()).pods(told, residents)
    assert [(one.pod, one.value) for one in found] == [("uid-q", 400.0)]


def test_of_two_cards_with_one_uuid_node_and_index_decide() -> None:
    twins = Devices([Node(name, (Gpu(0, 1000, uuid="GPU-x"),)) for name in "ab"])
    assert twins.find({"UUID": "GPU-x", "Hostname": "a", "gpu": "0"}) == 0
    assert twins.find({"UUID": "gpu-x", "Hostname": "b", "gpu": "0"}) == 1
    assert twins.find({"UUID": "GPU-x"}) is JoinFailure.NODE
    assert twins.find({"UUID": "GPU-y", "Hostname": "b", "gpu": "0"}) is JoinFailure.GPU


def test_labels_that_are_not_met_any_more_are_forgotten() -> None:
    joiner = SeriesJoiner(devices())
    steady = [one(USED, 5, UUID="GPU-a-0", Hostname="a")]
    for look in range(200):
        joiner.begin()
        strange = [one(USED, 5, Hostname=f"x{look}-{n}") for n in range(50)]
        assert [found.rows.tolist() for found in joiner.join(answer(*steady, *strange))] == [[0]]
        assert joiner.kept < 1500


def test_what_is_kept_of_one_look_is_bounded() -> None:
    joiner = SeriesJoiner(devices(), most_kept=10)
    told = answer(*(one(USED, 5, Hostname=f"x{n}") for n in range(100)))
    for _ in range(30):
        joiner.begin()
        joiner.join(told)
        assert joiner.unjoined == {JoinFailure.NODE: 100}
        assert joiner.kept <= 20


def test_an_example_is_fit_to_be_printed() -> None:
    joiner = SeriesJoiner(devices())
    joiner.join(answer(one(USED, 5, Hostname="x\u202e\x9b")))
    assert joiner.examples[JoinFailure.NODE].isprintable()


@pytest.mark.parametrize(
    "bad",
    [b"\xff", b"\xed\xa0\xbd", rb"\ud83d", rb"\uDE00", rb"\\\ud83d", rb"\ud83d\u0041"],
    ids=repr,
)
def test_what_is_no_text_in_a_label_costs_no_other_series(bad: bytes) -> None:
    """Labels are anybody's; what pods are called goes into every series about them."""
    series = b",".join(
        b'{"metric":{"__name__":"%b","Hostname":"a","gpu":"%d","job":"%b"},"values":[[%d,"7"]]}'
        % (USED.encode(), gpu, bad if gpu == 0 else b"fine", NOW_S)
        for gpu in range(2)
    )
    told = b'{"status":"success","warnings":["%b"],"data":{"resultType":"matrix","result":[%b]}}'
    found = decode(told % (bad, series), "w")
    joiner = SeriesJoiner(devices(uuids=False))
    (joined,) = joiner.join(found)
    assert joined.rows.tolist() == [0, 1]
    assert joiner.unjoined == {}
    assert labels_of(found.labels[0])["job"].startswith(("�", "\\�"))


def test_text_that_looks_alike_stays_as_it_is() -> None:
    """A whole character as two escapes, and a backslash that happens to stand before a u."""
    for good in (rb"\ud83d\ude00", rb"\\ud83d", "😀".encode(), rb"\\\\ud83d"):
        assert readable(b'{"a":"%b"}' % good) == b'{"a":"%b"}' % good


@pytest.mark.parametrize("labels", [b"[]", b'{"a":1}', b'{"a":"\xff"}', b'"x"', b"7", b""])
def test_labels_that_are_none_are_nobodys(labels: bytes) -> None:
    assert labels_of(labels) == {}
