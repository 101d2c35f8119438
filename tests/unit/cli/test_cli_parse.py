"""`weft parse` of files that have no pods, beside others and alone."""

from pathlib import Path

import pytest
from commands import Weft

from weft.cli.parse import NO_PODS

POD = "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n"
SERVICE = "kind: Service\napiVersion: v1\nmetadata: {name: s}\nspec: {ports: []}\n"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    texts = {"empty": "", "service": SERVICE, "comment": "---\n# later\n", "pod": POD}
    texts["list"] = '{"kind": "PodList", "apiVersion": "v1", "items": []}'
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: tmp_path / name for name in texts}


@pytest.mark.parametrize("name", ["empty", "service", "comment", "list"])
@pytest.mark.parametrize("output", ["table", "json"])
def test_no_pod_at_all_is_an_error(
    weft: Weft, files: dict[str, Path], name: str, output: str
) -> None:
    said = weft("parse", files[name], "-o", output)
    assert (said.code, said.err) == (1, f"weft: error: {files[name]}: {NO_PODS}\n")
    assert said.out == ("[]\n" if output == "json" else "")


def test_beside_files_with_pods_it_is_a_note(weft: Weft, files: dict[str, Path]) -> None:
    said = weft("parse", files["service"], files["pod"])
    assert (said.code, said.err) == (0, f"weft: note: {files['service']}: has no pods\n")
    assert weft("parse", "--quiet", files["service"], files["pod"]).err == ""


def test_a_file_that_is_wrong_is_all_that_is_said_of_it(
    weft: Weft, files: dict[str, Path], tmp_path: Path
) -> None:
    said = weft("parse", tmp_path / "none", files["service"])
    assert said.err.splitlines() == [
        f"weft: note: {files['service']}: has no pods",
        f"weft: error: {tmp_path}/none: no such file",
    ]
    assert said.code == 1


def test_a_pod_that_would_wait_for_an_annotation_is_named(weft: Weft, tmp_path: Path) -> None:
    policy = 'annotations: {volcano.sh/vgpu-podgroup-policy: "spread"}'
    asks = "containers: [{name: c, resources: {limits: {volcano.sh/vgpu-number: 1}}}]"
    file = tmp_path / "pod.yaml"
    file.write_text(f"{{kind: Pod, metadata: {{name: a, {policy}}}, spec: {{{asks}}}}}\n")
    said = weft("parse", file)
    assert said.code == 1
    assert "volcano.sh/vgpu-podgroup-policy ('spread') is not honoured by Weft" in said.err
