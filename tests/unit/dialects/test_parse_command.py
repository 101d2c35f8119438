"""`weft parse`: what people see."""

import json

import pytest
import typer
from typer.testing import CliRunner

from weft.cli.parse import parse

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
    writes = row.pop("writes")
    assert row == {
        "file": "-",
        "kind": "Deployment",
        "name": "binpack",
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
        "warnings": [],
    }
    assert set(writes) == {"annotations", "labels", "env"}
    assert writes["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "<gpu index>"
    assert writes["annotations"]["ALIYUN_COM_GPU_MEM_POD"] == "2"
    assert writes["annotations"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == "<time in ns>"
    assert set(writes["env"]) == {"a"}


def test_the_unit_is_assumed_with_a_warning_or_said():
    (row,) = rows(GPUSHARE)
    assert "unit assumed" in row["warnings"][0]
    (row,) = rows(GPUSHARE, "--gpushare-unit", "MiB")
    assert row["containers"][0]["memory_mib"] == 2


def test_the_options_that_change_a_reading():
    text = GPUSHARE.replace("name: a,", "name: cnn,")
    assert rows(text, "--interference-table")[0]["dialect"] == "coscheml"
    labels = {"genius/gpu-memory-each": "5"}
    each = json.dumps({"kind": "Pod", "metadata": {"name": "g", "labels": labels},
                       "spec": {"containers": [{"name": "a"}]}})  # fmt: skip
    assert rows(each)[0]["containers"][0]["memory_mib"] == 5
    assert rows(each, "--compat", "exact")[0]["containers"][0]["gpus"] == 0


def test_a_pod_without_a_gpu_has_no_dialect():
    (row,) = rows(PLAIN)
    assert row["dialect"] is None
    assert row["containers"][0]["gpus"] == 0
    assert row["writes"] == {"annotations": {}, "labels": {}, "env": {}}


@pytest.mark.parametrize(
    "kind",
    ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"],
)
def test_workloads_with_a_template(kind):
    (row,) = rows(json.dumps(template(SPEC, kind)))
    assert (row["kind"], row["name"], row["dialect"]) == (kind, "x", "nvidia")


def test_the_other_shapes_of_workloads():
    cron = {"kind": "CronJob", "metadata": {"name": "c"},
            "spec": {"jobTemplate": {"spec": {"template": {"spec": SPEC}}}}}  # fmt: skip
    bare = {"kind": "PodTemplate", "metadata": {"name": "t"}, "template": {"spec": SPEC}}
    (row,) = rows(json.dumps(cron))
    assert (row["kind"], row["name"], row["dialect"]) == ("CronJob", "c", "nvidia")
    (row,) = rows(json.dumps(bare))
    assert (row["kind"], row["name"], row["dialect"]) == ("PodTemplate", "t", "nvidia")


def test_kubeflow_replicas_and_argo_steps_are_named():
    replicas = {"Master": {"template": {"spec": SPEC}}, "Worker": {"template": {"spec": SPEC}}}
    job = {"kind": "PyTorchJob", "metadata": {"name": "pt"},
           "spec": {"pytorchReplicaSpecs": replicas}}  # fmt: skip
    assert [row["name"] for row in rows(json.dumps(job))] == [
        "pt/pytorchReplicaSpecs/Master", "pt/pytorchReplicaSpecs/Worker"
    ]  # fmt: skip
    flow = {"kind": "Workflow", "metadata": {"generateName": "wf-"}, "spec": {"templates": [
        {"name": "train", "container": SPEC["containers"][0], "sidecars": [{"name": "s"}]},
        {"name": "script", "script": {"source": "x"}},
        {"name": "dag", "dag": {"tasks": [{"name": "t", "template": "train"}]}}, 7]}}  # fmt: skip
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
        (str(second), "plain"), (str(first), "plain"), (str(first), "binpack")
    ]  # fmt: skip


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
    assert lines[1].split() == ["Deployment/binpack", "gpushare", "a", "1", "2", "units", "-"]
    assert lines[3].split() == ["Job/x", "hami", "h", "2", "50", "%", "of", "a", "card", "25", "%"]
    assert lines[4].split() == ["Job/x", "nvidia", "a", "1", "whole", "card", "100", "%"]
    assert lines[5].split() == ["Pod/plain", "none", "a", "0", "-", "-"]
    assert "Deployment/binpack: writes annotation ALIYUN_COM_GPU_MEM_IDX=<gpu index>" in lines
    assert "Deployment/binpack: sets NVIDIA_VISIBLE_DEVICES=<gpu index> in a" in lines
    assert any("warning: aliyun.com/gpu-mem: unit assumed" in line for line in lines)
