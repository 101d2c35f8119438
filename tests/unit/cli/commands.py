"""`weft` in this process: what it prints on both streams, and how it ends."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from weft.cli.main import main

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{i},32000,100000,2,{model}\n" for i, model in enumerate(("T4", "T4", "V100M32", "T4"))
)
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    + "".join(
        f"p{i},1000,1000,{gpus},{milli},,{i},{i + 30},{i}\n"
        for i, (gpus, milli) in enumerate([(1, 500), (1, 1000), (2, 1000), (1, 300), (1, 700)] * 4)
    )
)
SHORT_PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{i},1000,1000,1,500\n" for i in range(10)
)


def policy_file(score: str, name: str = "mine", body: str = "") -> str:
    """A file with one policy, which scores nodes by this."""
    return f"""
from weft.core.framework import Policy


class Mine(Policy):
    name = "{name}"
    summary = "mine"

    def __init__(self, bias: int = 0) -> None:
        self.bias = bias

    def score_nodes(self, query):
        return {score} + self.bias
{body}"""


def kubeconfig(folder: Path) -> Path:
    """A kubeconfig whose one context, `here`, nobody listens at."""
    cluster = "{name: here, cluster: {server: 'http://127.0.0.1:1'}}"
    context = "{name: here, context: {cluster: here}}"
    file = folder / "kubeconfig"
    file.write_text(f"current-context: here\nclusters: [{cluster}]\ncontexts: [{context}]\n")
    return file


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Weft:
    """Runs `weft ...` through its entry point; `trace` are the options that name a small trace."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self._patch, self._capsys = folder, patch, capsys
        self.nodes, self.pods = folder / "nodes.csv", folder / "pods.csv"
        self.nodes.write_text(NODES)
        self.pods.write_text(PODS)
        self.trace = ("--nodes", str(self.nodes), "--pods", str(self.pods))

    def __call__(self, *arguments: object) -> Said:
        self._patch.setattr(sys, "argv", ["weft", *map(str, arguments)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else int(bool(code)), out, err)

    def simulate(self, *arguments: object) -> Said:
        """`weft simulate` on the small trace, in one process unless told otherwise."""
        jobs = () if "--jobs" in arguments else ("--jobs", "1")
        return self("simulate", *self.trace, *jobs, *arguments)

    def error(self, *arguments: object) -> str:
        """The one line that a wrong `weft simulate` on the small trace ends with."""
        said = self.simulate(*arguments)
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1), said
        assert said.err.startswith("weft: error: ")
        return said.err.removeprefix("weft: error: ").strip()
