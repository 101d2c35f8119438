"""Vectors computed independently of Weft from the original systems' code, logs and documents."""

import json

import msgspec
import pytest

from weft.dialects.coscheml import APPLICATIONS
from weft.dialects.dialect import DialectSettings
from weft.dialects.elastic import agent_hash
from weft.dialects.registry import parse_pod
from weft.model import BadInputError, PodManifest

CARD_MIB = 16_160


def gpu_requests(name, *values, settings=DialectSettings()):  # noqa: B008
    containers = [
        {"name": f"c{i}", "resources": {"limits": {name: value}}} for i, value in enumerate(values)
    ]
    pod = msgspec.convert({"spec": {"containers": containers}}, PodManifest)
    return parse_pod(pod, settings).shape.gpu_requests


def test_elastic_agents_hash_of_device_ids():
    assert agent_hash(["0-02", "0-00", "0-01"]) == "b85df0ed"


@pytest.mark.parametrize(
    ("name", "values", "mib"),
    [
        ("alnair/vgpu-memory", [16], CARD_MIB),
        ("alnair/vgpu-memory", [8, 8], CARD_MIB),
        ("aliyun.com/gpu-mem", [15], CARD_MIB),
        ("elasticgpu.io/gpu-memory", [16160], CARD_MIB),
    ],
)
def test_each_systems_count_of_a_card_is_that_card(name, values, mib):
    (gpu_request,) = gpu_requests(name, *values)
    assert gpu_request.memory.mib_on(CARD_MIB) == mib


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("alnair/vgpu-memory", [17]),
        ("alnair/vgpu-memory", [8, 9]),
        ("aliyun.com/gpu-mem", [16]),
        ("elasticgpu.io/gpu-memory", [16161]),
    ],
)
def test_one_more_than_a_card_never_fits(name, values):
    (gpu_request,) = gpu_requests(name, *values)
    assert gpu_request.memory.mib_on(CARD_MIB) > CARD_MIB


def test_two_alnair_pods_of_half_a_card_fit_together():
    (half,) = gpu_requests("alnair/vgpu-memory", 8)
    assert 2 * half.memory.mib_on(CARD_MIB) == CARD_MIB


@pytest.mark.parametrize(("card", "gpushare", "alnair"), [(16160, 15, 16), (32510, 31, 32)])
def test_cards_of_the_originals_documents(card, gpushare, alnair):
    assert gpu_requests("aliyun.com/gpu-mem", 1)[0].memory.units_on(card) == gpushare
    assert gpu_requests("alnair/vgpu-memory", 1)[0].memory.units_on(card) == alnair


def test_elastics_sidecar_fault_is_kept_for_exact_only():
    containers = [
        {"name": "side"},
        {"name": "main", "resources": {"limits": {"elasticgpu.io/gpu-core": 100}}},
    ]
    pod = msgspec.convert({"spec": {"containers": containers}}, PodManifest)
    # On one GPU the sidecar's placement leaves no idle card: unschedulable, as the original.
    assert len(parse_pod(pod, DialectSettings(compat="exact")).shape.gpu_requests) == 2
    assert len(parse_pod(pod, DialectSettings()).shape.gpu_requests) == 1


@pytest.mark.data
def test_coscheml_applications_are_the_tables_keys(weft_data):
    table = json.loads((weft_data / "coscheml" / "interference.json").read_bytes())
    assert set(APPLICATIONS.values()) == set(table)


@pytest.mark.data
def test_pods_captured_from_kube_scheduler_are_read(weft_data):
    found = sorted((weft_data / "extender").glob("*-filter-*[0-9].json"))
    read = []
    for path in found:
        pod = msgspec.convert(json.loads(path.read_bytes())["body"]["Pod"], PodManifest)
        asked = {name for c in pod.spec.containers for name in c.resources.limits or ()}
        if {"nvidia.com/gpu", "elasticgpu.io/gpu-memory"} <= asked:
            # Some captured pods mix systems: they pin the wire's form, not decisions.
            with pytest.raises(BadInputError, match="keep one system"):
                parse_pod(pod, DialectSettings())
        else:
            read.append(parse_pod(pod, DialectSettings()).dialect)
    assert read


@pytest.mark.parametrize("mib", [872, 6994, 8388, 32510])
def test_the_diplomas_job_profiles_and_its_card(mib):
    pod = msgspec.convert(
        {"metadata": {"labels": {"GPU_MEM_REQ": str(mib)}}, "spec": {"containers": [{}]}},
        PodManifest,
    )
    (gpu_request,) = parse_pod(pod, DialectSettings()).shape.gpu_requests
    assert gpu_request.memory.mib_on(32510) == mib
