"""A server shows a renewed certificate without being started anew."""

import asyncio
import logging
import os
import ssl
from pathlib import Path

import pytest

from fakes.certificates import self_signed
from weft.cluster.http.tls import follow_certificate, server_tls

log = logging.getLogger("weft.test")


def pair(folder: Path, name: str) -> tuple[Path, Path]:
    self_signed(folder, name)
    return folder / f"{name}.pem", folder / f"{name}.key"


def publish(files: tuple[Path, Path], folder: Path) -> None:
    """As a kubelet does it: the names lead to other files."""
    for file, name in zip(files, ("tls.crt", "tls.key"), strict=True):
        link = folder / f"next-{name}"
        link.symlink_to(file)
        os.replace(link, folder / name)


async def shown(port: int) -> bytes | None:
    """The certificate that a client of this moment sees."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    found: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


async def test_a_renewed_certificate_is_shown_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (pair(tmp_path, name) for name in ("first", "second"))
    broken = (second[0], first[1])
    files = (tmp_path / "tls.crt", tmp_path / "tls.key")
    publish(first, tmp_path)
    tls = server_tls(*files, None)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    following = asyncio.create_task(follow_certificate(tls, *files, log, look_s=0.01))
    try:
        assert await shown(port) == der(first[0])
        publish(broken, tmp_path)
        async with asyncio.timeout(60):
            while "cannot be loaded" not in caplog.text:
                await asyncio.sleep(0.01)
        assert await shown(port) == der(first[0])
        publish(second, tmp_path)
        async with asyncio.timeout(60):
            while await shown(port) != der(second[0]):
                await asyncio.sleep(0.01)
        assert caplog.text.count("cannot be loaded") == 1
    finally:
        following.cancel()
        server.close()
