"""`weft parse` names each mistake once, with its place and the way out."""

import json

import pytest
from parse_runs import GPUSHARE, PLAIN, SPEC, asking, error, no_pods, rows, run, template


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
    assert "none.yaml: no such file" in first
    assert "irectory" in second
    assert "odd.yaml: cannot be read: not UTF-8" in third


@pytest.mark.parametrize("text", ["10M", 10_000_000])
def test_a_size_that_kubernetes_shortened_is_not_called_wrongly_written(text):
    made = asking("aliyun.com/gpu-mem")
    made["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = text
    line = error(json.dumps(made))
    assert "is 10,000,000 units, more than any card has" in line
    assert "suffix" not in line
    assert ("(Kubernetes may shorten 10000000 to this)" in line) is (text == "10M")


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
    assert no_pods("kind: MachineDeployment\nspec: {template: {spec: {container: x}}}\n")
    assert no_pods("kind: Certificate\nspec: {template: {metadata: {}}}\n")
    volcano = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {tasks: []}\n"
    assert no_pods(volcano)


def test_two_containers_of_one_name_are_an_error():
    line = error("kind: Pod\nspec: {containers: [{name: a}, {name: b}, {name: a}]}\n")
    assert "spec.containers[2].name: 'a' is also spec.containers[0].name" in line
    both = "kind: Pod\nspec: {initContainers: [{name: a}], containers: [{name: a}]}\n"
    assert "'a' is also spec.initContainers[0].name" in error(both)


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
    """The texts handed to the reader add up to the file: nothing is read twice."""
    from weft.cluster.state.manifests import split

    text = "---\n".join([PLAIN] * 400)
    parts = list(split(text))
    assert len(parts) == 400
    assert sum(len(part.text) for part in parts) <= len(text)
    assert [part.first_line for part in parts[:3]] == [0, 3, 7]
