import pytest
from manifests import EXACT, SANE, ask, asks, box, parsed, pod

from weft.dialects import registry
from weft.dialects.catalog import ALL, ASKING_LABELS, is_gpu_resource
from weft.dialects.dialect import Dialect, DialectSettings
from weft.dialects.hami import RULES
from weft.dialects.preview import preview
from weft.dialects.registry import systems_of
from weft.dialects.resources import PodWords
from weft.model import BadInputError

MEM, CORE, GPU = "aliyun.com/gpu-mem", "elasticgpu.io/gpu-core", "nvidia.com/gpu"


def test_all_are_in_one_place_with_their_ties():
    found: dict[str, Dialect] = {d.name: d for d in ALL}
    assert {name: d.tie_break for name, d in found.items()} == {
        "weft": "first",
        "elastic": "last",
        "coscheml": "first",
        "gpushare": "first",
        "alnair": "uuid",
        "hami": "first",
        "genius": "first",
        "kubeknots": "first",
        "kai": "first",
        "volcano": "first",
        "koordinator": "first",
        "nvidia": "first",
    }
    assert all(registry.dialect(name) is d for name, d in found.items())
    assert registry.dialect("none").name == "none"
    with pytest.raises(BadInputError, match="'slurm' is unknown"):
        registry.dialect("slurm")


def test_no_systems_own_resource_counts_beside_the_gpus():
    for system in ALL:
        assert all(is_gpu_resource(name) for name in system.resources)
    assert not is_gpu_resource("nvidia.com/mig-1g.5gb")
    assert not is_gpu_resource("rdma/hca")


def test_a_pod_without_a_gpu_is_no_error():
    request = parsed(box("a"), ask(GPU, 0, "b"), ask(MEM, "0", "c"))
    assert request.dialect == "none"
    assert request.shape.gpu_requests == ()
    assert all(c.asked is None for c in request.containers)


@pytest.mark.parametrize("interference_table", [False, True])
def test_no_system_that_a_pod_asks_by_is_passed_over(interference_table: bool) -> None:
    """A table of names says whose a pod may be: it must lead to all that each system heeds."""
    settings = DialectSettings(interference_table=interference_table)
    names = sorted({name for system in ALL for name in system.resources} | {GPU, "cpu"})
    labels = sorted(ASKING_LABELS)
    for system in ALL:
        asking = [
            pod(ask(name, 1, "lammps"), scheduler=scheduler)
            for name in names
            for scheduler in ("weft", *system.scheduler_names)
        ]
        asking += [pod(box("lammps"), labels={label: "1"}) for label in labels]
        asking += [pod(ask(GPU, 1), annotations={rule: "x"}) for rule in RULES]
        for each in asking:
            if system.carries(PodWords(each), settings):
                assert system.name in {found.name for found in systems_of(PodWords(each), settings)}


def test_ownership_is_by_words_and_for_two_systems_by_name():
    owners = {
        name: {d.name for d in ALL if d.owns(pod(scheduler=name), SANE)}
        for name in ("genius-scheduler", "custom-scheduler", "alnair-cost-saving", "weft")
    }
    assert owners == {
        "genius-scheduler": {"genius"},
        "custom-scheduler": {"kubeknots"},
        "alnair-cost-saving": set(),
        "weft": set(),
    }
    assert registry.dialect("gpushare").owns(pod(init=[ask(MEM, 1)]), SANE)


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ({MEM: 1, CORE: 1}, {}),
        ({MEM: 1, "alnair/vgpu-memory": 1}, {}),
        ({CORE: 1, GPU: 1}, {}),
        ({MEM: 1, GPU: 1}, {}),
        ({MEM: 1}, {"GPU_MEM_REQ": "5"}),
        ({MEM: 1}, {"genius/gpu-number": "5"}),
        ({GPU: 1, "nvidia.com/gpumem": 5}, {"genius/gpu-number": "5"}),
        ({}, {"genius/gpu-number": "5", "GPU_MEM_REQ": "5"}),
    ],
)
def test_two_unrelated_systems_are_one_clear_error(limits, labels):
    with pytest.raises(BadInputError, match="keep one system") as caught:
        parsed(asks("c", limits), labels=labels)
    assert "(" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_systems_in_two_containers_are_one_too():
    with pytest.raises(BadInputError) as caught:
        parsed(ask(MEM, 1, "a"), box("b"), init=[ask(CORE, 1, "i")])
    assert MEM in str(caught.value)
    assert CORE in str(caught.value)


@pytest.mark.parametrize(
    "scheduler", ["alnair-cost-saving", "genius-scheduler", "custom-scheduler", "hami-scheduler"]
)
def test_resources_outweigh_a_scheduler_name_of_another_system(scheduler):
    request = parsed(ask(MEM, 2), scheduler=scheduler)
    assert request.dialect == "gpushare"
    assert f"schedulerName {scheduler}" in request.warnings[0]


def test_wefts_and_foreign_scheduler_names_are_no_contradiction():
    for name in ("weft", "default-scheduler", "yunikorn", ""):
        request = parsed(ask(MEM, 2), scheduler=name)
        assert request.warnings == ()
        assert request.scheduler_name == (name or "default-scheduler")


def test_the_scheduler_name_decides_between_related_words():
    assert parsed(ask(GPU, 1), scheduler="genius-scheduler").dialect == "genius"
    assert parsed(ask(GPU, 1), scheduler="custom-scheduler").dialect == "kubeknots"
    assert parsed(ask(GPU, 1)).dialect == "nvidia"
    request = parsed(labels={"GPU_MEM_REQ": "5"}, scheduler="genius-scheduler")
    assert request.dialect == "kubeknots"


def test_invalid_quantities_name_field_and_value():
    for name in (MEM, GPU, "weft.dev/gpu-memory", "rdma/hca"):
        with pytest.raises(BadInputError) as caught:
            parsed(ask(name, "2 cards"))
        assert caught.value.where == f"spec.containers[0].resources.limits[{name}]"
        assert "'2 cards'" in str(caught.value)


@pytest.mark.parametrize("text", ["0.5", "500m", "1n", 1.5])
def test_extended_resources_are_whole_numbers(text):
    with pytest.raises(BadInputError, match="not a whole number"):
        parsed(ask(GPU, text))


@pytest.mark.parametrize("text", ["1e30", "1e999999999", "9E", "1e99999", "9" * 50])
def test_absurd_quantities_are_refused_not_computed(text):
    for name in (GPU, "cpu", "memory", "rdma/hca"):
        with pytest.raises(BadInputError, match="larger than any"):
            parsed(ask(name, text))


def test_what_is_common_to_all_pods():
    request = parsed(
        box("a"),
        priority=5,
        nodeName="n7",
        containers=[
            asks("a", {"cpu": "500m", "memory": "1Gi", "rdma/hca": 1, "hugepages-2Mi": "4Mi"})
        ],
    )
    assert (request.uid, request.namespace, request.name) == ("uid-1", "ns", "p")
    assert request.priority == 5
    assert request.shape.node_name == "n7"
    assert request.shape.cpu_milli == 500
    assert request.shape.memory_mib == 1024
    assert request.shape.extended == (("hugepages-2Mi", 4 * 2**20), ("rdma/hca", 1))


@pytest.mark.parametrize("settings", [SANE, EXACT, DialectSettings(interference_table=True)])
@pytest.mark.parametrize(
    "manifest",
    [
        pod(ask(CORE, 50)),
        pod(ask(CORE, 300), box("b")),
        pod(ask(MEM, 5)),
        pod(ask(MEM, 500, "cnn")),
        pod(ask("alnair/vgpu-memory", 2)),
        pod(asks("c", {GPU: 3, "nvidia.com/gpumem-percentage": 7, "nvidia.com/gpucores": 5})),
        pod(ask(GPU, 1_000)),
        pod(ask("weft.dev/gpu-memory", "8Gi")),
        pod(labels={"genius/gpu-memory-total": "99"}),
        pod(labels={"GPU_MEM_REQ": "99"}),
    ],
)
def test_previews_show_no_invented_number(manifest, settings):
    request = registry.parse_pod(manifest, settings)
    marks = preview(request)
    values = [*marks.annotations.values(), *(v for e in marks.env.values() for v in e.values())]
    assert any("<gpu" in value for value in values)
    assert not [v for v in values for word in ("9100", "9200", "9300", "9400") if word in v]


def test_a_preview_of_no_gpu_is_empty():
    marks = preview(parsed(box()))
    assert (marks.annotations, marks.labels, marks.env) == ({}, {}, {})
