"""TLS: whose certificate is looked at, and what is said about a bad one."""

import ssl
import subprocess
from pathlib import Path

import aiohttp
import msgspec
import pytest
from extender_world import StubCluster, args, bind_args, elastic

from fakes.addresses import own_address
from fakes.certificates import self_signed
from weft.cluster.config.form import ExtenderSettings
from weft.cluster.extender.routes import default_routes
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.extender.service import Extender
from weft.cluster.extender.setup import listen, listening_of
from weft.cluster.http.access import AccessRule
from weft.cluster.http.tls import server_tls
from weft.kube.pods import Pod
from weft.model import BadInputError
from weft.testing.builders import node


def cluster() -> StubCluster:
    return StubCluster([node("n1", gpus=1, memory_mib=1000)])


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """server.pem, client.pem, stranger.pem and their keys; each is its own authority."""
    return self_signed(tmp_path_factory.mktemp("pem"), "server", "client", "stranger")


async def test_only_known_certificates_may_ask_but_anyone_for_health(pem: Path) -> None:
    def client(name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(pem / "server.pem"))
        if name:
            context.load_cert_chain(pem / f"{name}.pem", pem / f"{name}.key")
        return context

    server = ExtenderServer(
        Extender(cluster()), default_routes(), door=AccessRule(certificate=True)
    )
    tls = server_tls(pem / "server.pem", pem / "server.key", pem / "client.pem")
    port = await server.listen("127.0.0.1", 0, tls)
    base = f"https://127.0.0.1:{port}"
    async with aiohttp.ClientSession(base) as session:
        body = args(elastic(), ["n1"])
        async with session.post("/weft/filter", data=body, ssl=client("client")) as answer:
            assert (await answer.json())["NodeNames"] == ["n1"]
        async with session.post("/weft/filter", data=body, ssl=client()) as answer:
            assert answer.status == 403
        async with session.get("/gpushare-scheduler/inspect", ssl=client()) as answer:
            assert answer.status == 403
        async with session.get("/healthz", ssl=client()) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            async with session.post("/weft/filter", data=body, ssl=client("stranger")):
                pass
    await server.close()


def test_bad_certificates_are_named(pem: Path) -> None:
    with pytest.raises(BadInputError, match=r"client\.key"):
        server_tls(pem / "server.pem", pem / "client.key", None)
    with pytest.raises(BadInputError, match="none"):
        server_tls(pem / "server.pem", pem / "server.key", pem / "none")


@pytest.mark.parametrize("path", ["bind", "filter", "prioritize", "preempt"])
async def test_another_machine_without_a_certificate_neither_asks_nor_binds(path: str) -> None:
    """Whatever listened there: the rule is the server's, not only the configuration's."""
    host = own_address() or pytest.skip("this machine has no address but loopback")
    stub = cluster()
    stub.known["ns", "a"] = msgspec.convert(elastic(), Pod)
    body = bind_args("a", "n1") if path == "bind" else args(elastic(), ["n1"])

    server = ExtenderServer(Extender(stub), default_routes())
    port = await server.listen("0.0.0.0", 0)
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        for route in ("/weft", "/scheduler", "/gpushare-scheduler"):
            async with session.post(f"{route}/{path}", data=body) as answer:
                assert answer.status == 403
                assert "extender.clientAuthorityFile" in (await answer.json())["Error"]
        for page in ("/gpushare-scheduler/inspect/n1", "/scheduler/status", "/metrics"):
            async with session.get(page) as answer:
                assert answer.status == 403
        async with session.get("/readyz") as answer:
            assert answer.status == 200
    assert not stub.bound
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.post("/weft/bind", data=bind_args("a", "n1")) as answer,
    ):
        assert await answer.json() == {"Error": ""}
    await server.close()


async def test_everybody_is_let_in_where_that_is_what_was_said() -> None:
    host = own_address() or pytest.skip("this machine has no address but loopback")

    server = ExtenderServer(Extender(cluster()), default_routes(), door=AccessRule(anyone=True))
    port = await server.listen("0.0.0.0", 0)
    body = args(elastic(), ["n1"])
    async with (
        aiohttp.ClientSession(f"http://{host}:{port}") as session,
        session.post("/weft/filter", data=body) as answer,
    ):
        assert (await answer.json())["NodeNames"] == ["n1"]
    await server.close()


async def test_the_shipped_certificates_let_kube_scheduler_in_and_nobody_else(
    tmp_path: Path,
) -> None:
    """The files that deploy/extender-certificates.sh makes, with the configuration's reading of
    them."""
    script = Path(__file__).parents[4] / "deploy" / "extender-certificates.sh"
    folder = tmp_path / "made"
    subprocess.run([script, folder, "IP:127.0.0.1"], check=True, capture_output=True)
    wish = listening_of(
        ExtenderSettings(
            enabled=True,
            port=0,
            certificate_file=f"{folder}/tls.crt",
            key_file=f"{folder}/tls.key",
            client_authority_file=f"{folder}/ca.crt",
        )
    )
    plain = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    ours = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    ours.load_cert_chain(folder / "client.crt", folder / "client.key")

    server = ExtenderServer(Extender(cluster()), default_routes(), door=wish.door)
    (port,) = await listen(server, wish)
    body = args(elastic(), ["n1"])
    async with aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session:
        async with session.post("/weft/filter", data=body, ssl=ours) as answer:
            assert (await answer.json())["NodeNames"] == ["n1"]
        async with session.post("/weft/filter", data=body, ssl=plain) as answer:
            assert answer.status == 403, "loopback alone is not enough beside certificates"
        with pytest.raises(aiohttp.ClientError):
            async with session.post(f"http://127.0.0.1:{port}/weft/filter", data=body):
                pass
    await server.close()
