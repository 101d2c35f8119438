"""The chart's console on a real control plane, behind a real nginx, in Chromium: a user's token,
live updates through the proxy, no hidden name at any address, and the end of the token."""

import base64
import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from binaries import find_or_build
from certificates import available
from chromium import Window
from control_plane import ControlPlane
from go_tools import NoBinariesError
from needed_tools import lacking
from processes import Server, free_ports
from shown import check, console, eventually, opened
from test_console_in_chromium import snapshot
from test_console_live import account, may_list_pods, token_of
from test_deploy import objects, once_allowed
from weft_process import ALONE, nodes, pod, weft

from weft.console.server import VIEWS
from weft.kube.codec import LEASES, PODS

__all__ = ["snapshot"]
NO_NGINX = "no nginx command: apt-get install -y --no-install-recommends nginx"
HIDDEN = "whisper"
"""A part of every name of the namespace that the viewer may not list."""
ENDS_IN_S = 20
ASKS = {"held": 4_000, "large": 9**6}
CONF = """
user root;
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  {temporary}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass {console};
    }}
  }}
}}
"""
"""As little as a proxy needs: its answers are buffered, and it asks by HTTP/1.0."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if not available():
        lacking("no openssl command, which makes the certificates: install it")
    try:
        binaries = find_or_build(lambda text: None)
    except NoBinariesError as error:
        lacking(str(error))
    with ControlPlane(binaries, tmp_path_factory.mktemp("control-plane")) as made:
        yield made


@contextmanager
def nginx(console_url: str, folder: Path) -> Iterator[str]:
    """The address of a proxy in front of this console."""
    command = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin") or shutil.which("nginx")
    if command is None:
        lacking(NO_NGINX)
    (port,) = free_ports(1)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n  ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    conf = folder / "nginx.conf"
    console_url = console_url.replace("0.0.0.0", "127.0.0.1")
    conf.write_text(CONF.format(folder=folder, temporary=temporary, port=port, console=console_url))
    server = Server([command, "-c", conf, "-e", "stderr"], folder / "nginx.log")
    server.start()
    try:
        url = f"http://127.0.0.1:{port}"
        server.wait_ready(lambda: got(f"{url}/healthz")[0] == 200)
        yield url
    finally:
        server.kill()


def got(url: str, token: str = "") -> tuple[int, bytes]:
    """Status and body of the answer; of a stream what comes first."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        streams = answer.headers["Content-Type"].startswith("text/event-stream")
        return answer.status, answer.readline() + answer.readline() if streams else answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def chart_options(folder: Path) -> list[str]:
    """The options with which the chart starts the console, its configuration in a file here."""
    (deployment,) = [one for one in objects("console") if one["kind"] == "Deployment"]
    (configured,) = [
        one
        for one in objects("scheduler")
        if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", "weft-config")
    ]
    program, name, *options = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert (program, name) == ("weft", "console")
    file = folder / "weft.yaml"
    file.write_text(configured["data"]["weft.yaml"])
    return [word.replace("/etc/weft/config/weft.yaml", str(file)) for word in options]


def ending_in(plane: ControlPlane, token: str, seconds: int) -> str:
    """The same token, signed with the API server's key to end so soon: it makes none for less than
    ten minutes."""
    head, claims, _ = token.split(".")
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    body = f"{head}.{_base64url(json.dumps({**said, 'exp': int(time.time()) + seconds}).encode())}"
    sign = ["openssl", "dgst", "-sha256", "-sign", str(plane.account_key)]
    signed = subprocess.run(sign, input=body.encode(), capture_output=True, check=True).stdout
    length = signed[3]  # DER: 30 … 02 length r 02 length s
    r, s = signed[4 : 4 + length], signed[6 + length :]
    raw = b"".join(int.from_bytes(number).to_bytes(32) for number in (r, s))
    return f"{body}.{_base64url(raw)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def signed_in(window: Window, token: str) -> None:
    eventually(window, "document.activeElement?.name === 'token'")
    window.browser.complaints.clear()  # Chromium tells of each 401
    window.type(token)
    window.press("Enter")


@contextmanager
def cluster(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Two namespaces, each with a pod that has a place and one that waits; rights of the console
    and of a viewer of one of them."""
    for namespace, prefix in (("team", "own"), (f"{HIDDEN}-space", HIDDEN)):
        plane.create_namespace(namespace)
        made = [
            pod(f"{prefix}-{name}", "weft", {"elasticgpu.io/gpu-memory": ASKS[name]})
            for name in ASKS
        ]
        plane.create_pods(namespace, made)
    nodes(plane, 2)
    plane.create_namespace("weft-system")
    rbac = [one for one in objects("console") if one["apiVersion"].startswith("rbac.")]
    for one in [*rbac, *may_list_pods("team", "viewer"), account("team", "nobody")]:
        plane.api.create(one)
    user = "system:serviceaccount:weft-system:weft-console"
    with closing(plane.api_for(user)) as own:
        once_allowed(own, PODS.of(""))
        once_allowed(own, LEASES.of("weft-system"))
    with weft(plane, folder, ALONE):
        yield


def addresses() -> list[str]:
    """Every address there is, those of hidden objects too."""
    hidden = f"namespace={HIDDEN}-space&name={HIDDEN}"
    return [
        *(f"/{view}" for view in VIEWS),
        *(f"/{kind}/{HIDDEN}-space" for kind in ("namespace", "queue")),
        f"/pod/{HIDDEN}-space/{HIDDEN}-held",
        *(f"/api/{name}" for name in ("about", "picture", "health", "compare", "moment", "")),
        *(f"/api/explain?{hidden}-{name}" for name in ASKS),
        "/api/explain?namespace=team&name=own-large",
        "/api/explain?namespace=team&name=own-held",
        *(f"/api/history?gpu={node}/{gpu}" for node in ("node-0", "node-1") for gpu in (0, 1)),
        "/healthz",
    ]


def test_a_picture_arrives_whole_though_nothing_follows(
    window: Window, snapshot: str, tmp_path: Path
) -> None:
    with nginx(snapshot, tmp_path) as url:
        status, text = got(f"{url}/api/picture")
        assert status == 200
        assert text.startswith(b"event: picture\ndata: {")
        opened(window, f"{url}/map")
        check(window, url)


def test_a_users_token_shows_the_cluster_live_until_it_ends(
    window: Window, plane: ControlPlane, tmp_path: Path
) -> None:
    user = plane.kubeconfig_for("system:serviceaccount:weft-system:weft-console")
    options = [*chart_options(tmp_path), "--kubeconfig", str(user)]
    with cluster(plane, tmp_path), console(*options) as behind, nginx(behind, tmp_path) as url:
        assert got(f"{url}/api/picture")[0] == 401
        short = ending_in(plane, token_of(plane, "team", "viewer"), ENDS_IN_S)
        window.open(f"{url}/waiting", 1280)
        signed_in(window, short)
        eventually(window, "document.querySelector('main tbody')?.innerText.includes('own-large')")
        for namespace, prefix in ((f"{HIDDEN}-space", HIDDEN), ("team", "own")):
            waits = pod(f"{prefix}-later", "weft", {"elasticgpu.io/gpu-memory": ASKS["large"]})
            plane.create_pods(namespace, [waits])
        began = time.monotonic()
        eventually(window, "document.querySelector('main tbody')?.innerText.includes('own-later')")
        assert time.monotonic() - began < 10, "an update is not kept back by the proxy"
        assert HIDDEN not in window.run("document.documentElement.outerHTML")
        check(window, url)
        for who in ("viewer", "nobody"):
            token = token_of(plane, "team", who)
            for address in addresses():
                status, body = got(url + address, token)
                assert status in (200, 403, 404), (who, address, status)
                asked = f"there is no pod {HIDDEN}-space/{HIDDEN}".encode()
                assert HIDDEN.encode() not in body.replace(asked, b""), (who, address)
        said = "document.querySelector('#sign-in [role=alert]')?.innerText"
        assert "may have expired" in eventually(window, said)
        assert "own-" not in window.run("document.body.innerText")
        assert got(f"{url}/api/picture", short)[0] == 401
        signed_in(window, token_of(plane, "team", "viewer"))
        eventually(window, "document.querySelector('main tbody')?.innerText.includes('own-later')")
    window.run("sessionStorage.clear()")
