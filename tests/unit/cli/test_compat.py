"""The image starts as the originals' programs did: names, arguments, environment."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from weft.cli.compat import PROGRAMS, Started, translate
from weft.cli.logs import LogLevel
from weft.cluster.config.form import Configuration
from weft.cluster.config.read import decode
from weft.model import BadInputError


def configuration(started: Started) -> Configuration:
    assert started.configuration is not None
    return decode(yaml.safe_dump(started.configuration).encode(), "weft.yaml")


@pytest.mark.parametrize(
    ("program", "words", "environment", "command", "warned"),
    [
        (
            "/usr/bin/elastic-gpu-scheduler",
            "--priority binpack --v 2",
            {"PORT": "39999"},
            "extender serve --priority binpack",
            "",
        ),
        (
            "elastic-gpu-scheduler",
            "-priority=spread -mode gpushare -kubeconf /k -alsologtostderr -v 5",
            {},
            "extender serve --priority spread --kubeconfig /k --log debug",
            "",
        ),
        (
            "weft-compat",
            "",
            {"PORT": "12345", "LOG_LEVEL": "debug"},
            "extender serve --log debug",
            "",
        ),
        ("gpushare-sche-extender", "", {"THREADNESS": "8"}, "extender serve", ""),
        (
            "weft-compat",
            "-priority binpack -mode gpushare",
            {},
            "extender serve --priority binpack",
            "",
        ),
        ("elastic-gpu-scheduler", "-fresh 1", {}, "extender serve", "-fresh=1"),
        ("elastic-gpu-scheduler", "", {"PORT": "http"}, "extender serve", "PORT=http"),
        (
            "elastic-gpu-scheduler",
            "-policyConfigPath /data/policy.yaml",
            {},
            "extender serve",
            "import",
        ),
        (
            "weft-compat",
            "genius --config=/etc/x.yaml --v=3",
            {},
            "scheduler",
            "--config=/etc/x.yaml",
        ),
        (
            "kube-scheduler",
            "--authorization-kubeconfig=/k --kubeconfig=/k --bind-address=127.0.0.1 --leader-elect",
            {},
            "scheduler --kubeconfig /k",
            "-authorization-kubeconfig=/k",
        ),
        (
            "kube-scheduler",
            "--policy-config-file=/p.json --profiling=false",
            {},
            "scheduler",
            "import",
        ),
        (
            "gpushare-device-plugin-v2",
            "--health-check --query-kubelet --kubelet-port 10250 --token t --stderrthreshold=INFO",
            {"NODE_NAME": "a"},
            "agent --device-plugins --node-name a",
            "does not ask the kubelet",
        ),
        (
            "gpushare-device-plugin-v2",
            "-logtostderr --v=5 --memory-unit=MiB --mps=false",
            {"NODE_NAME": "a", "KUBECONFIG": "/etc/kubernetes/kubelet.conf"},
            "agent --device-plugins --node-name a --log debug",
            "",
        ),
        ("genius", "--logging-format json", {}, "scheduler --log-format json", ""),
        ("genius", "--logging-format=xml", {}, "scheduler", "not one of text, json"),
        (
            "elastic-gpu-agent",
            "-nodeName b -dbFile /host/var/x -gpuPluginName gpushare",
            {},
            "agent --device-plugins --node-name b",
            "-dbFile",
        ),
    ],
)
def test_the_originals_start_lines_are_commands_of_weft(
    program: str, words: str, environment: dict[str, str], command: str, warned: str
) -> None:
    started = translate(program, words.split(), environment)
    assert started.words == command.split()
    assert bool(started.warnings) == bool(warned)
    assert warned in " ".join(started.warnings)
    configuration(started)


def test_an_extender_listens_where_and_to_whom_the_original_did() -> None:
    extender = configuration(translate("weft-compat", [], {"PORT": "12345"})).extender
    assert (extender.address, extender.port, extender.anyone_may_bind) == ("0.0.0.0", 12345, True)
    other = configuration(translate("elastic-gpu-scheduler", [], {}))
    assert other.extender.port == 39_999
    url = "http://thanos-prometheus.kube-system:80"
    assert (
        configuration(translate("elastic-gpu-scheduler", ["-prometheusUrl", url], {})).telemetry.url
        == url
    )


def test_gpushares_unit_is_that_of_its_plugin() -> None:
    for said, meant in (("MiB", "MiB"), ("GiB", "GiB"), ("KiB", "GiB")):
        started = translate("gpushare-device-plugin-v2", [f"--memory-unit={said}"], {})
        assert configuration(started).gpushare_unit == meant


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("debug", "debug"),
        ("warn", "warning"),
        ("TRACE", "debug"),
        ("NOTICE", "info"),
        ("ALERT", "error"),
    ],
)
def test_both_sets_of_log_levels_are_known(name: str, level: str) -> None:
    assert translate("gpushare-sche-extender", [], {"LOG_LEVEL": name}).level == level
    assert translate("gpushare-sche-extender", ["-v", "4"], {"LOG_LEVEL": name}).level == "debug"


def test_an_unknown_log_level_is_warned_of() -> None:
    (text,) = translate("gpushare-sche-extender", [], {"LOG_LEVEL": "loud"}).warnings
    assert text.startswith("LOG_LEVEL=loud")


def test_a_priority_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadInputError, match="binpack, spread or random"):
        translate("elastic-gpu-scheduler", ["-priority", "fast"], {})


@pytest.mark.parametrize("words", [["scheduler", "--config", "x"], ["--version"], []])
def test_weft_own_command_line_is_untouched(words: list[str]) -> None:
    assert translate("weft-compat", words, {}) == Started(words, None, LogLevel.INFO, [])
    assert translate("weft-compat", ["weft", *words], {}) == Started(words, None, LogLevel.INFO, [])


def test_its_configuration_is_read_from_memory(tmp_path: Path) -> None:
    """A whole process, which reads its configuration and then ends, as there is no cluster."""
    missing = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "weft.cli.compat", "-priority", "binpack", "-kubeconf"]
    done = subprocess.run([*command, str(missing)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "running weft extender serve" in done.stderr
    assert "anyoneMayBind" in done.stderr
    assert str(missing) in done.stderr.splitlines()[-1]


def test_the_image_has_every_programs_name() -> None:
    text = (Path(__file__).parents[3] / "deploy" / "image" / "make_image.py").read_text()
    dockerfile = (Path(__file__).parents[3] / "Dockerfile").read_text()
    for program in set(PROGRAMS) - {"kube-scheduler"}:
        assert f"/{program}" in text
        assert program in dockerfile
