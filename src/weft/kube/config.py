"""Finds the API server and its credentials: from a kubeconfig, or from inside a pod.

Proxies are not supported, neither from the environment nor from a kubeconfig: with a proxy a lost
answer says nothing about the API server.
"""

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from weft.files.reading import raw_bytes
from weft.kube.client import Credentials, Endpoint, ExecPlugin, FixedCredentials, TokenFile
from weft.kube.clock import Clock, SystemClock
from weft.kube.kubeconfig import ChosenContext, Exec, choose, read
from weft.kube.tls import client_tls, load_certificate
from weft.model import BadInputError
from weft.model.url_text import shown_url

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


def load(
    context: str = "",
    *,
    paths: tuple[Path, ...] = (),
    env: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> Endpoint:
    """Return kubectl's endpoint: from `paths`, else KUBECONFIG, else the pod's, else
    ~/.kube/config.

    `context` names one of the kubeconfig's contexts; "" is the current context.
    """
    env = os.environ if env is None else env
    clock = clock or SystemClock()
    if not paths and env.get("KUBECONFIG"):
        paths = tuple(Path(part) for part in env["KUBECONFIG"].split(os.pathsep) if part)
    if not paths and not context and env.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(env, clock)
    if not paths:
        paths = (Path(env.get("HOME", "/root")) / ".kube" / "config",)
    return from_kubeconfig(choose(read(paths), context), clock)


def in_cluster(env: Mapping[str, str], clock: Clock, folder: Path = SERVICE_ACCOUNT) -> Endpoint:
    """Return the endpoint of a pod with its own service account; the token is reread as it is
    renewed."""
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BadInputError(
            "KUBERNETES_SERVICE_HOST", "is not set: this process does not run in a pod"
        )
    authority = _file(folder / "ca.crt", "service account: ca.crt")
    credentials = TokenFile(folder / "token", clock, "service account: token")
    namespace = folder / "namespace"
    return Endpoint(
        url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        credentials=credentials,
        tls=client_tls(authority, f"service account: {folder / 'ca.crt'}"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source=f"service account in {folder}",
        inside=True,
    )


def from_kubeconfig(chosen: ChosenContext, clock: Clock) -> Endpoint:
    """Return the endpoint of one kubeconfig context."""
    cluster, at = chosen.cluster, f"{chosen.cluster_file}: clusters[{chosen.name}].cluster"
    parts = urlsplit(cluster.server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        what = f"{shown_url(cluster.server)!r} is not a URL; write https://HOST:PORT"
        raise BadInputError(f"{at}.server", what)
    if "@" in parts.netloc:
        what = f"{shown_url(cluster.server)!r} names a user or a password: these go under `users`"
        raise BadInputError(f"{at}.server", what)
    if cluster.proxy_url:
        what = "Weft does not use proxies; remove it or give a direct address"
        raise BadInputError(f"{at}.proxy-url", what)
    tls = _tls(chosen, at) if parts.scheme == "https" else None
    return Endpoint(
        url=cluster.server.rstrip("/"),
        credentials=_credentials(chosen, tls, clock),
        tls=tls,
        server_name=cluster.tls_server_name,
        namespace=chosen.namespace,
        source=f"context {chosen.name} of {chosen.cluster_file}",
    )


def _tls(chosen: ChosenContext, at: str) -> ssl.SSLContext:
    cluster, user = chosen.cluster, chosen.user
    authority = _authority(chosen, f"{at}.certificate-authority")
    skip = cluster.insecure_skip_tls_verify
    if skip and authority:
        what = "contradicts certificate-authority; keep one of the two"
        raise BadInputError(f"{at}.insecure-skip-tls-verify", what)
    context = client_tls(authority, f"{at}.certificate-authority", verify=not skip)
    user_path = f"{chosen.user_file}: users[{chosen.name}].user"
    file, data, path = chosen.user_file, user.client_certificate_data, user.client_certificate
    certificate = _data_or_file(data, path, file, f"{user_path}.client-certificate")
    key = _data_or_file(user.client_key_data, user.client_key, file, f"{user_path}.client-key")
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise BadInputError(f"{user_path}.{missing}", "is missing: the two belong together")
    if certificate:
        load_certificate(context, certificate, key, f"{user_path}.client-certificate")
    return context


def _credentials(chosen: ChosenContext, tls: ssl.SSLContext | None, clock: Clock) -> Credentials:
    user, at = chosen.user, f"{chosen.user_file}: users[{chosen.name}].user"
    if user.auth_provider is not None:
        what = "is no longer supported by Kubernetes; use an exec plugin"
        raise BadInputError(f"{at}.auth-provider", what)
    if user.token:
        return FixedCredentials.bearer(user.token)
    if user.token_file:
        return TokenFile(chosen.user_file.parent / user.token_file, clock, f"{at}.tokenFile")
    if user.username:
        return FixedCredentials.basic(user.username, user.password)
    if user.exec is not None:
        return _exec(user.exec, chosen, f"{at}.exec", tls, clock)
    return FixedCredentials()


def _exec(
    exec_plugin: Exec, chosen: ChosenContext, at: str, tls: ssl.SSLContext | None, clock: Clock
) -> ExecPlugin:
    if not exec_plugin.command:
        raise BadInputError(f"{at}.command", "is missing")
    if exec_plugin.api_version not in _EXEC_VERSIONS:
        what = f"{exec_plugin.api_version!r} is unknown; write {_EXEC_VERSIONS[0]}"
        raise BadInputError(f"{at}.apiVersion", what)
    # As kubectl: a command with a slash is relative to the file, one without is looked up in PATH.
    command = exec_plugin.command
    if "/" in command:
        command = str(chosen.user_file.parent / command)
    spec: dict[str, object] = {"interactive": False}
    if exec_plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(chosen)
    info = {"apiVersion": exec_plugin.api_version, "kind": "ExecCredential", "spec": spec}
    env = {variable.name: variable.value for variable in exec_plugin.env or ()}
    env["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
    return ExecPlugin([command, *(exec_plugin.args or ())], env, clock, at, tls)


def _cluster_info(chosen: ChosenContext) -> dict[str, object]:
    cluster = chosen.cluster
    info: dict[str, object] = {"server": cluster.server}
    if authority := _authority(chosen, ""):
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    if cluster.tls_server_name:
        info["tls-server-name"] = cluster.tls_server_name
    if cluster.insecure_skip_tls_verify:
        info["insecure-skip-tls-verify"] = True
    return info


def _authority(chosen: ChosenContext, at: str) -> bytes:
    data, path = chosen.cluster.certificate_authority_data, chosen.cluster.certificate_authority
    return _data_or_file(data, path, chosen.cluster_file, at)


def _data_or_file(data: str, path: str, beside: Path, at: str) -> bytes:
    """Return inline data, which wins over a file as in kubectl; empty if neither is given."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise BadInputError(f"{at}-data", f"is not base64: {error}") from error
    return _file(beside.parent / path, at) if path else b""


def _file(path: Path, at: str) -> bytes:
    try:
        return raw_bytes(path)
    except OSError as error:
        raise BadInputError(at, f"cannot read {path}: {error.strerror}") from error
