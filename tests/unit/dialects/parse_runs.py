"""Runs of `weft parse` and what they print."""

import json

import typer
from typer.testing import CliRunner

from weft.cli.parse import parse
from weft.dialects.dialect import DialectSettings

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


def no_pods(text):
    """The exit code and what is said of a text without pods."""
    done = run("-", "--output", "json", text=text)
    assert json.loads(done.stdout) == []
    return done.exit_code == 1 and "-: has no pods" in done.stderr


def error(text):
    done = run("-", text=text)
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    return line


def template(spec, kind="Job", **labels):
    meta = {"metadata": {"labels": labels}} if labels else {}
    return {"kind": kind, "metadata": {"name": "x"}, "spec": {"template": {**meta, "spec": spec}}}


SPEC = {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}


def asking(name):
    limits = {"limits": {name: 1}}
    spec = {"containers": [{"name": "a", "resources": limits}, {"name": "b"}]}
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
