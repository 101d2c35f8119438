"""`weft parse`: what people see."""

import io
import json

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from weft.cli.manifests import ManifestPod, manifest_of, pods_in
from weft.cli.parse import parse, read_pod
from weft.cli.parse_rows import table_of
from weft.cluster.state import pod_reader
from weft.cluster.state.pod_constraints import UnknownVolumes
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod

SANE = DialectSettings()
APP = typer.Typer()
APP.command("parse")(parse)

GPUSHARE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: binpack}
spec:
  template:
    spec:
      containers:
      - {name: a, resources: {limits: {aliyun.com/gpu-mem: 2}}}
      - {name: proxy}
"""
PLAIN = "kind: Pod\nmetadata: {name: plain}\nspec: {containers: [{name: a}]}\n"


def run(*arguments, text=None):
    return CliRunner().invoke(APP, list(arguments), input=text)


def rows(text, *options):
    done = run("-", "--output", "json", *options, text=text)
    assert done.stderr == ""
    assert done.exit_code == 0
    return json.loads(done.stdout)


def error(text):
    done = run("-", text=text)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    return line


def template(spec, kind="Job", **labels):
    meta = {"metadata": {"labels": labels}} if labels else {}
    return {"kind": kind, "metadata": {"name": "x"}, "spec": {"template": {**meta, "spec": spec}}}


SPEC = {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}


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
        "not_placed": [],
        "warnings": [],
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
    assert rows("") == []
    assert rows("null\n---\nkind: Service\nspec: {ports: [80, {port: 81}]}\n") == []
    assert rows("---\n# nothing\n---\n---\nkind: ConfigMap\ndata: {template: x}\n") == []
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


def test_the_readmes_comment_is_named_with_line_and_fix():
    text = PLAIN + (
        "---\nkind: Pod\nspec:\n  containers:\n  - resources:\n      limits:\n"
        '        elasticgpu.io/gpu-memory: "256" // 256MB memory\n'
        "        elasticgpu.io/gpu-core: 5\n"
    )
    line = error(text)
    assert line.startswith("weft: error: -: document 2: line 10, elasticgpu.io/gpu-memory: ")
    assert '"256" // 256MB memory' in line
    assert 'write "256"' in line
    assert "#" in line


def test_the_same_comment_after_a_bare_number():
    line = error(GPUSHARE.replace("gpu-mem: 2", "gpu-mem: 256 // 256MB memory"))
    assert "aliyun.com/gpu-mem" in line
    assert "'256 // 256MB memory' is not a Kubernetes quantity" in line


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            GPUSHARE.replace("gpu-mem: 2", "gpu-mem: 10G"),
            ["document 1", "Deployment binpack", "'10G'"],
        ),
        (
            GPUSHARE.replace("gpu-mem: 2", "gpu-mem: 2, elasticgpu.io/gpu-core: 5"),
            ["keep one system"],
        ),
        (
            "kind: Pod\nmetadata: {name: g, labels: {genius/gpu-model: '*'}}\n"
            "spec: {containers: [{}]}",
            ["Pod g", "metadata.labels[genius/gpu-model]", "'*'", "write"],
        ),
        (
            "kind: Pod\nmetadata: {name: g, labels: {GPU_MEM_REQ: 300}}\nspec: {containers: [{}]}",
            ["metadata.labels[GPU_MEM_REQ]", "300", "quotes"],
        ),
        ("kind: Pod\nspec: {containers: 5}", ["spec.containers", "5", "correct its type"]),
        ("kind: Pod\nspec: {containers: [{name: [1]}]}", ["spec.containers[0].name"]),
        ("kind: Pod\nspec:\n\tcontainers: []", ["line 3", "indent with spaces"]),
        ("kind: Pod\nkind: Pod\n", ["line 2", "written twice", "keep one"]),
        ("kind: [Pod\n", ["line", "check quotes"]),
        ("- 1\n- 2\n", ["list, not a Kubernetes object"]),
        ("kind: \x00Pod", ["document 1", "not YAML"]),
    ],
)
def test_each_mistake_is_one_line_with_place_value_and_fix(text, parts):
    line = error(text)
    assert line.startswith("weft: error: -: document 1")
    assert all(part in line for part in parts), line


def test_good_documents_are_shown_beside_bad_ones():
    bad = GPUSHARE.replace("gpu-mem: 2", "gpu-mem: x")
    done = run("-", "--output", "json", text=f"{bad}---\nkind: {{\n---\n{PLAIN}")
    assert done.exit_code == 1
    assert [row["name"] for row in json.loads(done.stdout)] == ["plain"]
    assert len(done.stderr.splitlines()) == 2
    assert "document 2: line" in done.stderr


def test_files_that_cant_be_read(tmp_path):
    odd = tmp_path / "odd.yaml"
    odd.write_bytes(b"\xff\xfe\x00")
    done = run(str(tmp_path / "none.yaml"), str(tmp_path), str(odd))
    assert done.exit_code == 1
    first, second, third = done.stderr.splitlines()
    assert "none.yaml: can't be read: No such file" in first
    assert "irectory" in second
    assert "odd.yaml: can't be read: not UTF-8" in third


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
    assert note.startswith("weft: note: what a container needs, weft agent sets")


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


def asking(name):
    limits = {"limits": {name: 1}}
    spec = {"containers": [{"name": "a", "resources": limits}, {"name": "b"}]}
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


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
        (asking("volcano.sh/vgpu-number"), "volcano.sh/vgpu-number", "Volcano's"),
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
    assert "does not place it" in asked["text"]
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


@pytest.mark.parametrize("text", ["10M", 10_000_000])
def test_a_size_that_kubernetes_shortened_is_not_called_wrongly_written(text):
    made = asking("aliyun.com/gpu-mem")
    made["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = text
    line = error(json.dumps(made))
    assert "is 10,000,000 units, more than any card has" in line
    assert "suffix" not in line
    assert ("(so Kubernetes shows 10000000, too)" in line) is (text == "10M")


def test_an_alias_inside_its_own_value_is_one_error():
    text = "a: &a {x: 1}\nkind: Pod\n<<: *a\nspec: &s {containers: [{name: a}], y: *s}\n"
    assert "line 4, y: an alias (*) to a value from inside that value" in error(text)
    assert "line 2: an alias" in error("kind: Pod\nspec: &s [1, *s]\n")
    assert "line 1, <<: an alias" in error("a: &a {<<: *a}\nkind: Pod\n")


def bomb(levels, width):
    """Lists of `width` aliases to the list above."""
    each = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels + 1)]
    return "\n".join(["a0: &a0 [x]", *each, PLAIN])


def test_aliases_that_stand_for_too_much_are_refused():
    assert "aliases (*) repeat more than 100,000 values" in error(bomb(8, 9))
    assert rows(bomb(3, 9))[0]["name"] == "plain"
    # One level each, written flat: deep only once the aliases are followed.
    assert "more than 100 levels deep" in error(bomb(400, 1))


def test_deep_nesting_is_one_error():
    assert "levels deep" in error(f"kind: Pod\nspec: {'[' * 250}{']' * 250}\n")
    assert "levels deep" in error(f"kind: Pod\nspec: {'[' * 5000}{']' * 5000}\n")


def test_anchors_and_merges_are_read_as_written_out():
    text = (
        "kind: Pod\nmetadata: {name: p}\nbase: &base {name: a, resources: &r {limits: "
        "{nvidia.com/gpu: 1}}}\nin: {deeper: &b {<<: *base, name: b}}\n"
        "spec: {containers: [*base, {<<: *b, name: c}, {name: d, resources: *r}]}\n"
    )
    (row,) = rows(text)
    assert [(c["name"], c["gpus"]) for c in row["containers"]] == [("a", 1), ("c", 1), ("d", 1)]


@pytest.mark.parametrize("value", ["!!timestamp x", "!!bool x", "!!int ''", "!!float x"])
def test_a_value_that_belies_its_tag_is_one_error(value):
    assert "document 1: is not YAML" in error(f"kind: {value}\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Pod\nmetadata: {name: p}\n", "Pod p: spec: is missing"),
        ("kind: Pod\nspec:\n", "document 1: Pod: spec: is empty"),
        ("kind: Pod\nspec: {containers: []}\n", "spec.containers: is empty"),
        ("kind: Pod\nspec: {containers: [null]}\n", "spec.containers: is empty"),
        ("kind: Pod\nspec: 5\n", "spec: 5 is not a mapping"),
        ("kind: Pod\nspec: {Containers: [{name: a}]}\n", "rename Containers to containers"),
        ("kind: Pod\nspec: {initContainers: [{name: a}]}\n", "spec.containers: is missing; a pod"),
        (
            GPUSHARE.replace("containers", "contaners"),
            "Deployment binpack: spec.template.spec.containers: is missing; rename contaners",
        ),
        (
            GPUSHARE.replace("template", "tempalte"),
            "Deployment binpack: spec.template: is missing; rename tempalte to template",
        ),
        ("kind: Job\nspec: {template: {spec: {containers: []}}}", "spec.template.spec.containers"),
        ("kind: Job\nspec: {template: {spec: {containers: 5}}}", "containers: 5 is not a list"),
        ("kind: Job\nspec: {containers: [{name: a}]}", "spec.template: is missing"),
        (
            "kind: CronJob\nspec: {jobTemplate: {template: {}}}",
            "spec.jobTemplate.spec: is missing; a pod needs",
        ),
        (
            "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Worker: {template: {spec: "
            "{container: [{name: a}]}}}}}",
            "spec.pytorchReplicaSpecs.Worker.template.spec.containers: is missing; rename",
        ),
        (
            "kind: Job\nspec: {template: {spec: {containers: [{name: [1]}]}}}",
            "spec.template.spec.containers[0].name",
        ),
    ],
)
def test_pods_that_hold_nothing_are_errors(text, says):
    line = error(text)
    assert line.startswith("weft: error: -: document 1: ")
    assert says in line


def test_templates_of_other_things_are_passed_over():
    assert rows("kind: MachineDeployment\nspec: {template: {spec: {container: x}}}\n") == []
    assert rows("kind: Certificate\nspec: {template: {metadata: {}}}\n") == []
    volcano = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {tasks: []}\n"
    assert rows(volcano) == []


def test_two_containers_of_one_name_are_an_error():
    line = error("kind: Pod\nspec: {containers: [{name: a}, {name: b}, {name: a}]}\n")
    assert "spec.containers[2].name: 'a' is spec.containers[0].name too" in line
    both = "kind: Pod\nspec: {initContainers: [{name: a}], containers: [{name: a}]}\n"
    assert "'a' is spec.initContainers[0].name too" in error(both)


def test_one_bad_item_of_a_list_leaves_the_others():
    bad = {"kind": "Pod", "metadata": {"name": "b"}, "spec": {}}
    text = json.dumps({"kind": "List", "items": [bad, template(SPEC)]})
    done = run("-", "--output", "json", text=text)
    assert [row["name"] for row in json.loads(done.stdout)] == ["x"]
    assert "Pod b: spec.containers: is missing" in done.stderr


def test_mistakes_beside_empty_items_and_odd_sidecars():
    assert "containers[0].name" in error("kind: Pod\nspec: {containers: [null, {name: [1]}]}\n")
    flow = "kind: Workflow\nspec: {templates: [{name: t, container: {image: i}, sidecars: 5}]}\n"
    assert rows(flow)[0]["containers"][0]["name"] == "main"


def test_nothing_is_printed_where_nothing_was_read():
    done = run("-", text="kind: Pod\n")
    assert (done.stdout, done.exit_code) == ("", 1)
    assert json.loads(run("-", "--output", "json", text="kind: Pod\n").stdout) == []


def test_keys_and_numbers_that_kubernetes_has_otherwise():
    text = PLAIN.replace("{name: plain}", "{name: plain, labels: {7: b, true: c}}")
    assert rows(text)[0]["name"] == "plain"
    assert "more than 64 bits" in error(f"kind: Pod\nspec: 0x{'f' * 9000}\n")
    assert "labels[7]: 2: expected `str`" in error(text.replace("7: b", "7: 2"))
    limits = PLAIN.replace("name: a", "name: a, resources: {limits: {x: 1, y: [1]}}")
    assert "limits[y]: expected" in error(limits)


@pytest.mark.parametrize(
    "meta", ['name: "x\\ud83d"', 'uid: "\\uDE00"', 'annotations: {a: "\\ud83d"}', '"\\ud83d": a']
)
def test_half_a_character_is_one_error_with_a_way_out(meta):
    line = error(f"kind: Pod\nmetadata: {{{meta}}}\nspec: {{containers: [{{name: a}}]}}\n")
    assert line.startswith("weft: error: -: document 1: line 2, metadata: ")
    assert "write the character itself" in line


def test_documents_cost_what_they_are_long_however_many_come_before():
    """What is handed to the reader adds up to the file: nothing is read twice."""
    from weft.cli.manifests import split

    text = "---\n".join([PLAIN] * 400)
    parts = list(split(text))
    assert len(parts) == 400
    assert sum(len(part.text) for part in parts) <= len(text)
    assert [part.first_line for part in parts[:3]] == [0, 3, 7]


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
