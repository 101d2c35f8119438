"""TLS: whose certificate is looked at, and what is said about a bad one."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
from extender_world import StubCluster, args, elastic

from weft.extender.routes import default_routes
from weft.extender.server import Server
from weft.extender.service import Extender
from weft.extender.tls import server_tls
from weft.model import BadInputError
from weft.testing.builders import node


def cluster() -> StubCluster:
    return StubCluster([node("n1", gpus=1, memory_mib=1000)])


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """server.pem, client.pem, stranger.pem and their keys; each is its own authority."""
    folder = tmp_path_factory.mktemp("pem")
    for name in ("server", "client", "stranger"):
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        )  # fmt: skip
    return folder


def test_only_known_certificates_may_ask_but_anyone_for_health(pem: Path) -> None:
    def client(name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(pem / "server.pem"))
        if name:
            context.load_cert_chain(pem / f"{name}.pem", pem / f"{name}.key")
        return context

    async def main() -> None:
        server = Server(Extender(cluster()), default_routes())
        tls = server_tls(pem / "server.pem", pem / "server.key", pem / "client.pem")
        port = await server.listen("127.0.0.1", 0, tls, client_auth=True)
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

    asyncio.run(main())


def test_bad_certificates_are_named(pem: Path) -> None:
    with pytest.raises(BadInputError, match=r"client\.key"):
        server_tls(pem / "server.pem", pem / "client.key", None)
    with pytest.raises(BadInputError, match="none"):
        server_tls(pem / "server.pem", pem / "server.key", pem / "none")
