"""`weft parse`: what people see."""

import io
import json

import msgspec
import pytest
from parse_runs import GPUSHARE, PLAIN, SANE, SPEC, asking, error, no_pods, rows, run, template
from rich.console import Console

from weft.cli.parse import read_pod
from weft.cli.parse_rows import table_of
from weft.cluster.state import pod_reader
from weft.cluster.state.manifests import ManifestPod, manifest_of, pods_in
from weft.cluster.state.pod_reader import UnknownVolumes
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod


def test_the_fields_of_a_row():
    (row,) = rows(GPUSHARE, "--gpushare-unit", "GiB")
    writes, needs_env = row.pop("writes"), row.pop("needs_env")
    assert row == {
        "file": "-",
        "kind": "Deployment",
        "namespace": None,
        "name": "binpack",
        "replicas": 1,
        "dialect": "gpushare",
        "containers": [
            {
                "name": "a",
                "gpus": 1,
                "memory_mib": None,
                "memory": {"kind": "units", "value": 2},
                "gpu_milli": 0,
            },
            {
                "name": "proxy",
                "gpus": 0,
                "memory_mib": 0,
                "memory": {"kind": "none", "value": 0},
                "gpu_milli": 0,
            },
        ],
        "shared_by_containers": True,
        "constraints": [],
        "preferences": [],
        "not_honoured": [],
        "not_placed": [],
        "warnings": [],
        "group": None,
    }
    assert set(writes) == {"annotations", "labels"}
    assert writes["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "<gpu index>"
    assert writes["annotations"]["ALIYUN_COM_GPU_MEM_POD"] == "2"
    assert writes["annotations"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == "<time in ns>"
    assert set(needs_env) == {"a"}


def test_the_unit_is_assumed_with_a_warning_or_said():
    (row,) = rows(GPUSHARE)
    assert "unit assumed" in row["warnings"][0]
    (row,) = rows(GPUSHARE, "--gpushare-unit", "MiB")
    assert row["containers"][0]["memory_mib"] == 2


def test_the_options_that_change_a_reading():
    text = GPUSHARE.replace("name: a,", "name: cnn,")
    assert rows(text, "--interference-table")[0]["dialect"] == "coscheml"
    labels = {"genius/gpu-memory-each": "5"}
    each = json.dumps(
        {
            "kind": "Pod",
            "metadata": {"name": "g", "labels": labels},
            "spec": {"containers": [{"name": "a"}]},
        }
    )
    assert rows(each)[0]["containers"][0]["memory_mib"] == 5
    assert rows(each, "--compat", "exact")[0]["containers"][0]["gpus"] == 0


def test_a_pod_without_a_gpu_has_no_dialect():
    (row,) = rows(PLAIN)
    assert row["dialect"] is None
    assert row["containers"][0]["gpus"] == 0
    assert (row["writes"], row["needs_env"]) == ({"annotations": {}, "labels": {}}, {})


@pytest.mark.parametrize(
    "kind",
    ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"],
)
def test_workloads_with_a_template(kind):
    (row,) = rows(json.dumps(template(SPEC, kind)))
    assert (row["kind"], row["name"], row["dialect"]) == (kind, "x", "nvidia")


def test_the_other_shapes_of_workloads():
    cron = {
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {"jobTemplate": {"spec": {"template": {"spec": SPEC}}}},
    }
    bare = {"kind": "PodTemplate", "metadata": {"name": "t"}, "template": {"spec": SPEC}}
    (row,) = rows(json.dumps(cron))
    assert (row["kind"], row["name"], row["dialect"]) == ("CronJob", "c", "nvidia")
    (row,) = rows(json.dumps(bare))
    assert (row["kind"], row["name"], row["dialect"]) == ("PodTemplate", "t", "nvidia")


def test_kubeflow_replicas_and_argo_steps_are_named():
    replicas = {"Master": {"template": {"spec": SPEC}}, "Worker": {"template": {"spec": SPEC}}}
    job = {
        "kind": "PyTorchJob",
        "metadata": {"name": "pt"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    assert [row["name"] for row in rows(json.dumps(job))] == [
        "pt/pytorchReplicaSpecs/Master",
        "pt/pytorchReplicaSpecs/Worker",
    ]
    flow = {
        "kind": "Workflow",
        "metadata": {"generateName": "wf-"},
        "spec": {
            "templates": [
                {"name": "train", "container": SPEC["containers"][0], "sidecars": [{"name": "s"}]},
                {"name": "script", "script": {"source": "x"}},
                {"name": "dag", "dag": {"tasks": [{"name": "t", "template": "train"}]}},
                7,
            ]
        },
    }
    found = rows(json.dumps(flow))
    assert [row["name"] for row in found] == ["wf-/train", "wf-/script"]
    assert [c["gpus"] for c in found[0]["containers"]] == [1, 0]


def test_lists_other_kinds_and_empty_documents():
    both = {"kind": "List", "items": [json.loads(json.dumps(template(SPEC))), {"kind": "Service"}]}
    (row,) = rows(json.dumps(both))
    assert row["name"] == "x"
    pods = {"kind": "PodList", "items": [{"metadata": {"name": "p"}, "spec": SPEC}]}
    (row,) = rows(json.dumps(pods))
    assert (row["kind"], row["name"]) == ("Pod", "p")
    assert no_pods("")
    assert no_pods("null\n---\nkind: Service\nspec: {ports: [80, {port: 81}]}\n")
    assert no_pods("---\n# nothing\n---\n---\nkind: ConfigMap\ndata: {template: x}\n")
    assert rows("%YAML 1.1\n---\n" + PLAIN + "...\n") == rows(PLAIN)


def test_files_and_documents_keep_their_order(tmp_path):
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text(f"{PLAIN}---\n{GPUSHARE}")
    second.write_text(PLAIN)
    done = run(str(second), str(first), "--output", "json")
    assert [(row["file"], row["name"]) for row in json.loads(done.stdout)] == [
        (str(second), "plain"),
        (str(first), "plain"),
        (str(first), "binpack"),
    ]


def test_times_are_text_and_empty_fields_absent():
    meta = "metadata:\n  name: p\n  creationTimestamp: 2026-01-01T00:00:00Z\n  labels:\n"
    text = f"kind: Pod\n{meta}spec: {{containers: [{{name: a, env: }}]}}\n"
    assert rows(text)[0]["name"] == "p"


def test_the_table_has_requests_warnings_and_writes():
    hami = {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 25}
    other = {"containers": [{"name": "h", "resources": {"limits": hami}}]}
    jobs = (json.dumps(template(other)), json.dumps(template(SPEC)))
    text = "\n---\n".join((GPUSHARE, *jobs, PLAIN))
    done = run("-", text=text)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [" ".join(line.split()) for line in lines[1:6]] == [
        "Deployment/binpack 1 gpushare a 1 2 units -",
        "proxy 0 - -",
        "Job/x 1 hami h 2 50 % of a card 25 %",
        "Job/x 1 nvidia a 1 whole card 100 %",
        "Pod/plain 1 none a 0 - -",
    ]
    assert lines[6] == "total: 4 pods, 1 whole GPU, 3 shares of a GPU (3 sized by the card)"
    assert "Deployment/binpack: writes annotation ALIYUN_COM_GPU_MEM_IDX=<gpu index>" in lines
    assert "Deployment/binpack: needs NVIDIA_VISIBLE_DEVICES=<gpu index> in a" in lines
    warning, note = done.stderr.splitlines()
    assert warning.startswith("weft: warning: Deployment/binpack: aliyun.com/gpu-mem: unit assumed")
    assert note.startswith("weft: note: weft agent sets the variables that a container needs")


def test_quiet_prints_the_table_alone():
    done = run("-", "--quiet", text=GPUSHARE)
    assert (done.exit_code, done.stderr) == (0, "")
    header, a, proxy, total = done.stdout.splitlines()
    assert header.split()[:2] == ["POD", "REPLICAS"]
    assert (a.split()[0], proxy.split()) == ("Deployment/binpack", ["proxy", "0", "-", "-"])
    assert total == "total: 1 pod, 1 share of a GPU (1 sized by the card)"


LONG = {
    "kind": "Deployment",
    "metadata": {"name": "a-rather-long-name-of-a-deployment", "namespace": "machine-learning"},
    "spec": {
        "replicas": 1_000,
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "a-container-with-a-long-name",
                        "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1_000}},
                    }
                ]
            }
        },
    },
}


def test_no_name_is_cut_in_a_file_or_at_80_columns():
    done = run("-", "-q", text=json.dumps(LONG))
    _, line, _ = done.stdout.splitlines()
    assert " ".join(line.split()) == (
        "machine-learning Deployment/a-rather-long-name-of-a-deployment 1000 hami "
        "a-container-with-a-long-name 1 1,000 MiB -"
    )
    (pod,) = pods_in(LONG)
    row = read_pod("f", pod, SANE).row
    narrow = Console(width=80, file=io.StringIO())
    narrow.print(table_of([row]))
    text = narrow.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def replicated(kind, *, spec=SPEC, **said):
    made = template(spec, kind)
    return made | {"spec": made["spec"] | said}


def in_a_cron_job(**said):
    job = {"template": {"spec": SPEC}, **said}
    return {"kind": "CronJob", "metadata": {"name": "x"}, "spec": {"jobTemplate": {"spec": job}}}


@pytest.mark.parametrize(
    ("workload", "replicas"),
    [
        ({"kind": "Pod", "metadata": {"name": "x"}, "spec": SPEC}, 1),
        (replicated("Deployment"), 1),
        (replicated("Deployment", replicas=3), 3),
        (replicated("Deployment", replicas=0), 0),
        (replicated("StatefulSet", replicas=4), 4),
        (replicated("ReplicaSet", replicas=5), 5),
        (replicated("ReplicationController", replicas=6), 6),
        (replicated("Job"), 1),
        (replicated("Job", parallelism=8), 8),
        (replicated("Job", parallelism=8, completions=5), 5),
        (replicated("Job", completions=5), 1),
        (in_a_cron_job(), 1),
        (in_a_cron_job(parallelism=7), 7),
        (replicated("DaemonSet"), None),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_the_pods_that_a_workload_runs_at_once(workload, replicas):
    (row,) = rows(json.dumps(workload))
    assert row["replicas"] == replicas


def test_replicas_of_each_part_of_other_makers_workloads():
    train = {"replicas": 4, "template": {"spec": SPEC}}
    kubeflow = {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Worker": train}}}
    job = {"spec": {"parallelism": 2, "template": {"spec": SPEC}}}
    jobs = [{"name": "a", "replicas": 3, "template": job}, {"name": "b", "template": job}]
    job_set = {"kind": "JobSet", "metadata": {"name": "s"}, "spec": {"replicatedJobs": jobs}}
    found = rows("\n---\n".join(map(json.dumps, (kubeflow, job_set))))
    assert [(row["name"], row["replicas"]) for row in found] == [
        ("", 4),
        ("s/replicatedJobs/a", 6),
        ("s/replicatedJobs/b", 2),
    ]


@pytest.mark.parametrize("number", ["3", -1, 1.5, True, 2**31])
def test_a_number_of_pods_that_is_none_is_an_error(number):
    line = error(json.dumps(replicated("Deployment", replicas=number)))
    assert f"Deployment x: spec.replicas: {number!r} is not a number of pods" in line


def test_the_total_counts_replicas_and_daemon_sets_apart():
    each = {"weft.dev/gpu-memory": 1_000, "weft.dev/gpu-count": 2}
    spec = {"containers": [{"name": "a", "resources": {"limits": each}}]}
    cards = replicated("Job", parallelism=1_000)
    both = (replicated("Deployment", spec=spec, replicas=3), replicated("DaemonSet"), cards)
    done = run("-", "-q", text="\n---\n".join(map(json.dumps, both)))
    assert done.stdout.splitlines()[-1] == (
        "total: 1,003 pods, 1,000 whole GPUs, 6 shares of a GPU (6,000 MiB); "
        "on each node of a DaemonSet: 1 whole GPU"
    )
    assert run("-", "-q", text=PLAIN).stdout.splitlines()[-1] == "total: 1 pod, no GPU"


def test_the_namespace_is_the_objects_own():
    made = replicated("Deployment")
    made["metadata"]["namespace"] = "ml"
    (row,) = rows(json.dumps(made))
    assert row["namespace"] == "ml"
    done = run("-", text=json.dumps(made))
    header, first, *_ = done.stdout.splitlines()
    assert header.split()[:3] == ["NAMESPACE", "POD", "REPLICAS"]
    assert first.split()[:2] == ["ml", "Deployment/x"]
    assert "ml/Deployment/x: needs NVIDIA_VISIBLE_DEVICES=<gpu uuid> in a" in done.stdout


FRACTION = {
    "kind": "Pod",
    "metadata": {"name": "p", "annotations": {"gpu-fraction": "0.5"}},
    "spec": {"containers": [{"name": "a"}]},
}


CLAIM = {
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {
        "containers": [{"name": "a", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
    },
}


@pytest.mark.parametrize(
    ("made", "name", "whose"),
    [
        (asking("nvidia.com/mig-1g.10gb"), "nvidia.com/mig-1g.10gb", "NVIDIA's device plugin's"),
        (asking("nvidia.com/gpu.shared"), "nvidia.com/gpu.shared", "NVIDIA's device plugin's"),
        (asking("nvidia.com/gpus"), "nvidia.com/gpus", "did you mean nvidia.com/gpu?"),
        (asking("weft.dev/gpu-memry"), "weft.dev/gpu-memry", "did you mean weft.dev/gpu-memory?"),
        (asking("tencent.com/vcuda-core"), "tencent.com/vcuda-core", "Tencent's"),
        (asking("amd.com/gpu"), "amd.com/gpu", "AMD's device plugin's"),
        (asking("gpu.intel.com/i915"), "gpu.intel.com/i915", "Intel's device plugin's"),
        (FRACTION, "gpu-fraction", "KAI Scheduler's"),
        (CLAIM, "spec.resourceClaims", "Kubernetes' dynamic resource allocation"),
    ],
)
def test_what_weft_does_not_place_is_named_and_the_exit_code_1(made, name, whose):
    done = run("-", "--output", "json", text=json.dumps(made))
    assert done.exit_code == 1
    (row,) = json.loads(done.stdout)
    (asked,) = row["not_placed"]
    assert asked["name"] == name
    assert whose in asked["text"]
    assert "does not place" in asked["text"]
    assert row["warnings"] == []
    (line,) = done.stderr.splitlines()
    container = f"container {', '.join(asked['containers'])}: " if asked["containers"] else ""
    assert line == f"weft: error: -: document 1: Pod p: {container}{asked['text']}"
    table = run("-", "--quiet", text=json.dumps(made))
    assert (table.exit_code, table.stderr) == (1, done.stderr)
    _, first, *_, total = table.stdout.splitlines()
    assert "not placed" in first
    assert name in first
    assert " ? " in first
    assert total == "total: 1 pod, no GPU; 1 not placed by Weft"


FULL = {
    "metadata": {
        "name": "p",
        "namespace": "ml",
        "uid": "u",
        "annotations": {"weft.dev/class": "batch"},
    },
    "spec": {
        "resources": {
            "requests": {"cpu": "3", "memory": "2Gi"},
            "limits": {"hugepages-2Mi": "6Mi"},
        },
        "overhead": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Mi"},
        "containers": [
            {
                "name": "a",
                "ports": [{"hostPort": 80}],
                "resources": {
                    "limits": {
                        "weft.dev/gpu-memory": 100,
                        "ephemeral-storage": "1Gi",
                        "rdma/hca": 1,
                    },
                    "requests": {"cpu": "8", "memory": "1Gi"},
                },
            }
        ],
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}],
    },
}


@pytest.mark.parametrize("settings", [SANE, DialectSettings(lends=True)])
def test_a_manifest_is_read_as_the_scheduler_reads_the_pod(settings):
    """Pod-level resources, storage, overhead, ports and constraints included."""
    live = msgspec.json.decode(json.dumps(FULL), type=Pod)
    live_request = pod_reader.read(live, settings, UnknownVolumes())
    manifest = manifest_of(ManifestPod("Pod", "p", FULL))
    request = pod_reader.read(manifest, settings, UnknownVolumes())
    assert request == live_request
    shape = request.shape
    assert (shape.cpu_milli, shape.memory_mib) == (3_250, 2_112)
    amounts = dict(shape.extended)
    assert amounts.pop("weft.dev/gpu-memory", 0) == (100 if settings.lends else 0)
    assert amounts == {
        "ephemeral-storage": 2**30 + 2**20,
        "hugepages-2Mi": 6 * 2**20,
        "pods": 1,
        "rdma/hca": 1,
    }
    assert shape.constraints.selector == (("pool", "gpu"),)
    assert [port.port for port in shape.constraints.ports] == [80]


def test_what_the_scheduler_cannot_read_of_a_pods_own_resources_is_an_error():
    spec = {"containers": [{"name": "a"}], "resources": {"limits": {"cpu": "many"}}}
    assert "spec.resources[cpu]" in error(json.dumps({"kind": "Pod", "spec": spec}))
