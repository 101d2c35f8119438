import base64
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.api_clock import VirtualClock
from weft.kube.client import REREAD_S, Endpoint, TokenFile
from weft.kube.config import in_cluster, load
from weft.model import BadInputError


def kubeconfig(path: Path, user: Any = None, cluster: Any = None, **top: Any) -> Path:
    server = {"server": "http://127.0.0.1:8001", **(cluster or {})}
    told = {
        "current-context": "dev",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        **top,
    }
    path.write_text(json.dumps(told))
    return path


async def header(endpoint: Endpoint) -> str:
    return await endpoint.credentials.authorization()


async def test_a_context_gives_server_namespace_and_token(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "t"})
    endpoint = load(env={"KUBECONFIG": str(path)})
    assert (endpoint.url, endpoint.namespace) == ("http://127.0.0.1:8001", "ns")
    assert await header(endpoint) == "Bearer t"
    endpoint.credentials.refused()
    assert await header(endpoint) == "Bearer t"
    assert endpoint.source == f"context dev of {path}"


async def test_the_first_of_several_files_to_say_something_wins(tmp_path: Path) -> None:
    one = kubeconfig(tmp_path / "one", {"token": "first"})
    (tmp_path / "sub").mkdir()
    two = kubeconfig(tmp_path / "sub" / "two", {"token": "second"}, **{"current-context": "x"})
    other = {"name": "x", "context": {"cluster": "c", "user": "v"}}
    three = tmp_path / "sub" / "three"
    (tmp_path / "sub" / "token").write_text("from beside\n")
    user = {"name": "v", "user": {"tokenFile": "token"}}
    three.write_text(json.dumps({"contexts": [other], "users": [user]}))
    env = {"KUBECONFIG": f"{tmp_path / 'absent'}:{one}:{two}:{three}"}
    assert await header(load(env=env)) == "Bearer first"
    assert await header(load("x", env=env)) == "Bearer from beside"
    assert load("x", env=env).namespace == "default"


async def test_user_and_password_and_nobody(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"username": "me", "password": "pw"})
    assert await header(load(paths=(path,))) == "Basic " + base64.b64encode(b"me:pw").decode()
    nobody = kubeconfig(tmp_path / "n", contexts=[{"name": "dev", "context": {"cluster": "c"}}])
    assert await header(load(paths=(nobody,))) == ""


async def test_home_is_the_last_resort_and_a_pod_comes_before_it(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", {"token": "home"})
    env = {"HOME": str(tmp_path)}
    assert await header(load(env=env)) == "Bearer home"
    with pytest.raises(BadInputError, match=r"service account: ca\.crt"):
        load(env={**env, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    with pytest.raises(BadInputError, match="set KUBECONFIG"):
        load(env={"HOME": "/nonexistent"})


BAD = [
    ({"cluster": {"server": "ftp://x"}}, r"clusters\[dev\]\.cluster\.server"),
    ({"cluster": {"proxy-url": "http://p"}}, "proxy-url"),
    ({"user": {"auth-provider": {"name": "gcp"}}}, "auth-provider"),
    ({"user": {"tokenFile": "absent"}}, "tokenFile.*cannot read the token"),
    ({"user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}}, "exec.command"),
    ({"user": {"exec": {"command": "x", "apiVersion": "v0"}}}, "exec.apiVersion"),
    ({"current-context": ""}, "current-context"),
    ({"current-context": "other"}, "contexts: there is no 'other'; there are: dev"),
    ({"contexts": [{"name": "dev", "context": {"user": "u"}}]}, "context.cluster"),
    ({"contexts": [{"name": "dev", "context": {"cluster": "c", "user": "w"}}]}, "no 'w'.*: u"),
    ({"clusters": 7}, r"is not a kubeconfig: .*\$\.clusters"),
    ({"cluster": {"server": "https://x", "certificate-authority-data": "!"}}, "authority-data"),
    ({"cluster": {"server": "https://x", "certificate-authority": "absent"}}, "cannot read"),
    (
        {"cluster": {"server": "https://x"}, "user": {"client-certificate-data": "eA=="}},
        "client-key: is missing",
    ),
    (
        {"cluster": {"server": "https://x"}, "user": {"client-key-data": "eA=="}},
        "client-certificate: is missing",
    ),
    (
        {
            "cluster": {
                "server": "https://x",
                "insecure-skip-tls-verify": True,
                "certificate-authority-data": "eA==",
            }
        },
        "insecure-skip-tls-verify",
    ),
]


@pytest.mark.parametrize(("parts", "words"), BAD, ids=lambda one: str(one)[:40])
def test_what_is_wrong_is_named_by_file_and_field(
    parts: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "config", **parts)
    with pytest.raises(BadInputError, match=words) as info:
        load(paths=(path,))
    assert str(tmp_path) in str(info.value)


def test_a_folder_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        load(paths=(tmp_path,))


def test_https_without_checks(tmp_path: Path) -> None:
    cluster = {"server": "https://x:1/", "insecure-skip-tls-verify": True, "tls-server-name": "y"}
    endpoint = load(paths=(kubeconfig(tmp_path / "config", cluster=cluster),))
    assert endpoint.tls is not None
    assert not endpoint.tls.check_hostname
    assert (endpoint.url, endpoint.server_name) == ("https://x:1", "y")


# --- exec plugins --------------------------------------------------------------------------------

V1 = "client.authentication.k8s.io/v1"


def plugin(tmp_path: Path, script: str, **more: Any) -> Path:
    """A kubeconfig with an exec plugin that is this shell script."""
    command = tmp_path / "plugin"
    command.write_text("#!/bin/sh\n" + script)
    command.chmod(0o755)
    told = {"command": "./plugin", "apiVersion": V1, **more}
    return kubeconfig(tmp_path / "config", {"exec": told})


async def test_an_exec_plugin_is_run_once_while_its_token_holds(tmp_path: Path) -> None:
    script = (
        f"echo run >> {tmp_path}/runs\n"
        f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n'
        'echo "{\\"status\\": {\\"token\\": \\"$1-$GREETING\\",'
        ' \\"expirationTimestamp\\": \\"2026-01-01T00:10:00Z\\"}}"\n'
    )
    env = [{"name": "GREETING", "value": "hello"}]
    path = plugin(tmp_path, script, args=["well"], env=env, provideClusterInfo=True)
    clock = VirtualClock()
    credentials = load(paths=(path,), clock=clock).credentials

    def runs() -> int:
        return len((tmp_path / "runs").read_text().split())

    assert await credentials.authorization() == "Bearer well-hello"
    assert await credentials.authorization() == "Bearer well-hello"
    assert runs() == 1
    credentials.refused()
    await credentials.authorization()
    assert runs() == 2
    clock.advance(595)  # its ten minutes are nearly over
    await credentials.authorization()
    assert runs() == 3
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == V1
    assert info["spec"] == {"interactive": False, "cluster": {"server": "http://127.0.0.1:8001"}}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo sorry >&2; exit 3", "ended with 3: sorry"),
        ("echo hello", "printed no ExecCredential"),
        ("echo '{\"status\":{}}'", "neither a token nor"),
        ('echo \'{"status":{"clientCertificateData":"x"}}\'', "is not https"),
    ],
)
async def test_an_exec_plugin_that_fails_is_named(script: str, words: str, tmp_path: Path) -> None:
    endpoint = load(paths=(plugin(tmp_path, script),))
    with pytest.raises(BadInputError, match=words) as info:
        await header(endpoint)
    assert "users[dev].user.exec" in str(info.value)


async def test_an_exec_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = plugin(tmp_path, "", command="./absent")
    with pytest.raises(BadInputError, match="cannot run"):
        await header(load(paths=(path,)))


# --- in a pod ------------------------------------------------------------------------------------


async def test_a_renewed_token_is_read_again(tmp_path: Path) -> None:
    clock = VirtualClock()
    path = tmp_path / "token"
    path.write_text("one\n")
    tokens = TokenFile(path, clock, "here")

    assert await tokens.authorization() == "Bearer one"
    path.write_text("two\n")
    assert await tokens.authorization() == "Bearer one"
    clock.advance(REREAD_S)
    assert await tokens.authorization() == "Bearer two"
    path.write_text("three\n")
    tokens.refused()
    assert await tokens.authorization() == "Bearer three"
    path.unlink()  # between two files: the old one still holds
    tokens.refused()
    assert await tokens.authorization() == "Bearer three"


def test_an_empty_token_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(BadInputError, match="is empty"):
        TokenFile(tmp_path / "token", VirtualClock(), "here")


async def test_a_pods_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("")
    (tmp_path / "namespace").write_text("kube-system\n")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    endpoint = in_cluster(env, VirtualClock(), tmp_path)
    assert (endpoint.url, endpoint.namespace) == ("https://[fd00::1]:6443", "kube-system")
    assert await header(endpoint) == "Bearer t"
    with pytest.raises(BadInputError, match="does not run in a pod"):
        in_cluster({}, VirtualClock(), tmp_path)
