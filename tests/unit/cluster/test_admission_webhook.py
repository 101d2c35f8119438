"""The webhook's answers, and the settings that `weft admission --webhook` refuses to print."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from weft.cli.main import app
from weft.cluster.admission.webhook import WebhookServer, reviewed
from weft.model import BadInputError


def review(spec: Any, **metadata: Any) -> bytes:
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return json.dumps({"request": {"uid": "u", "object": whole}}).encode()


def container(**limits: str) -> dict[str, Any]:
    return {
        "name": "main",
        "resources": {"limits": {f"aliyun.com/{k}": v for k, v in limits.items()}},
    }


NO_QUESTIONS = (b"", b"[]", b"{}", b'{"request": 3}', b'{"request": {"uid": "\xff')
ASKS = container(**{"gpu-mem": "2"})


@pytest.mark.parametrize(
    ("body", "becomes_ours"),
    [
        (review({"containers": [ASKS], "schedulerName": "default-scheduler"}), True),
        (review({"containers": [ASKS]}), True),
        (review({"containers": [ASKS], "schedulerName": "volcano"}), False),
        (review({"containers": [container(**{"gpu-mem": "0"})]}), False),
        (review({"containers": [{"name": "a"}]}, labels={"GPU_MEM_REQ": "x"}), True),
        (review({"containers": [ASKS]}, labels={"genius/gpu-number": "1"}), True),
        (review({"containers": 3}), False),
        (b'{"request": {"uid": "u", "object": null}}', False),
    ],
)
def test_pods_that_ask_and_name_nobody_are_given_a_scheduler(
    body: bytes, becomes_ours: bool
) -> None:
    answer = json.loads(reviewed(body, "weft"))
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response = answer["response"]
    assert (response["uid"], response["allowed"]) == ("u", True)
    if becomes_ours:
        change = [{"op": "replace", "path": "/spec/schedulerName", "value": "weft"}]
        assert json.loads(base64.b64decode(response["patch"])) == change
    else:
        assert "patch" not in response


@pytest.mark.parametrize("body", NO_QUESTIONS)
def test_what_is_no_question_is_an_error(body: bytes) -> None:
    with pytest.raises(BadInputError, match="AdmissionReview"):
        reviewed(body, "weft")


async def told(port: int, head: str, body: bytes = b"") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    length = f"Host: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(f"{head} HTTP/1.1\r\n{length}".encode() + body)
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def conversation() -> list[str]:
    server = WebhookServer("weft")
    port = await server.listen("127.0.0.1", 0, None)
    try:
        return [
            await told(port, "GET /healthz"),
            await told(port, "GET /schedule"),
            await told(port, "POST /schedule", b"{"),
            await told(port, "POST /schedule", review({"containers": [ASKS]})),
        ]
    finally:
        await server.close()


def test_each_request_gets_its_status() -> None:
    answers = asyncio.run(conversation())
    codes = [answer.split()[1] for answer in answers]
    assert codes == ["200", "404", "400", "200"]
    assert '"patchType":"JSONPatch"' in answers[-1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--webhook", "weft-system/weft-webhook"], "--ca-file"),
        (["--webhook", "weft-system", "--ca-file", "CA"], "NAMESPACE/SERVICE"),
        (["--ca-file", "CA"], "NAMESPACE/SERVICE"),
        (["--webhook", "a/b", "--ca-file", "missing.pem"], "missing.pem"),
        (["--webhook", "a/b", "--ca-file", "NOT"], "not a PEM certificate"),
        (["--plugin", "system:serviceaccount:gpushare-device-plugin"], "NAMESPACE:NAME"),
        (["--scheduler", ""], "not a user name"),
    ],
)
def test_what_would_never_work_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    files = {"CA": "-----BEGIN CERTIFICATE-----\n", "NOT": "hello"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    named = [str(tmp_path / word) if word in files else word for word in words]
    done = CliRunner().invoke(app, ["admission", *named])
    assert isinstance(done.exception, BadInputError)
    assert says in str(done.exception)
    assert done.stdout == ""


def test_the_configuration_asks_about_opted_in_pods_alone(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("-----BEGIN CERTIFICATE-----\n")
    words = ["--only", "schedule", "--webhook", "a/b", "--ca-file", str(tmp_path / "ca")]
    said = CliRunner().invoke(app, ["admission", *words]).stdout
    assert "failurePolicy: Ignore" in said
    assert "weft.dev/schedule: enabled" in said
    assert "MutatingAdmissionPolicy" not in said
