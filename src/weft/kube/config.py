"""Finds the API server and its credentials: from a kubeconfig, or from inside a pod.

Proxies are not supported, neither from the environment nor from a kubeconfig: with a proxy a lost
answer says nothing about the API server.
"""

import base64
import binascii
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from weft.files.reading import did_you_mean, raw_bytes
from weft.files.yaml_text import BrokenYamlError
from weft.files.yaml_text import load as load_yaml
from weft.kube.client import Credentials, Endpoint, ExecPlugin, FixedCredentials, TokenFile
from weft.kube.clock import Clock, SystemClock
from weft.kube.tls import client_tls, load_certificate
from weft.model import BadInputError
from weft.model.nearest import nearest
from weft.model.url_text import shown_url

# --- the file -------------------------------------------------------------------------------------
# The kubeconfig file: its form, and how several files are merged.
#
# As in kubectl, the first file to name a cluster, user, context or current context wins. Paths in a
# file are relative to that file.


class KubeconfigForm(msgspec.Struct, rename="kebab", frozen=True):
    """Base of the structs: field names are kebab-case in the file; unknown fields are skipped."""


class KubeconfigCluster(KubeconfigForm, frozen=True, rename="kebab"):
    """A cluster: its API server and the CA to trust."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class ExecEnv(msgspec.Struct, frozen=True):
    """One environment variable of an exec plugin."""

    name: str
    value: str


class Exec(msgspec.Struct, frozen=True, rename="camel"):
    """A command that prints credentials."""

    command: str = ""
    api_version: str = ""
    args: list[str] | None = None
    env: list[ExecEnv] | None = None
    provide_cluster_info: bool = False


class KubeconfigUser(KubeconfigForm, frozen=True, rename="kebab"):
    """A user: its credentials."""

    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: Exec | None = None
    auth_provider: dict[str, object] | None = None


class KubeconfigContext(KubeconfigForm, frozen=True, rename="kebab"):
    """A cluster, a user, and the default namespace."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(msgspec.Struct, frozen=True):
    """An entry of `clusters`."""

    name: str
    cluster: KubeconfigCluster = KubeconfigCluster()


class NamedUser(msgspec.Struct, frozen=True):
    """An entry of `users`."""

    name: str
    user: KubeconfigUser | None = None


class NamedContext(msgspec.Struct, frozen=True):
    """An entry of `contexts`."""

    name: str
    context: KubeconfigContext = KubeconfigContext()


class KubeconfigFile(KubeconfigForm, frozen=True, rename="kebab"):
    """One kubeconfig file."""

    current_context: str = ""
    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None


class ChosenContext(msgspec.Struct, frozen=True):
    """The parts of one context, each with the file it comes from."""

    cluster: KubeconfigCluster
    cluster_file: Path
    user: KubeconfigUser
    user_file: Path
    namespace: str
    name: str


_Named = TypeVar("_Named", NamedCluster, NamedUser, NamedContext)


def read(paths: Sequence[Path]) -> list[tuple[Path, KubeconfigFile]]:
    """Decode and return those of these files that exist; `BadInputError` if none does."""
    files = []
    for path in paths:
        try:
            text = raw_bytes(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadInputError(str(path), f"cannot be read: {error.strerror}") from error
        try:
            file = msgspec.convert(load_yaml(text), KubeconfigFile)
        except (msgspec.ValidationError, BrokenYamlError, BadInputError) as error:
            raise BadInputError(str(path), f"is not a kubeconfig: {error}") from error
        files.append((path, file))
    if not files:
        names = ", ".join(f"{path}{did_you_mean(path)}" for path in paths)
        raise BadInputError("kubeconfig", f"no such file: {names}; set KUBECONFIG")
    return files


def choose(files: Sequence[tuple[Path, KubeconfigFile]], context: str = "") -> ChosenContext:
    """Return the parts of this context, or of the current context if ""."""
    where = str(files[0][0])
    wanted = context or next((f.current_context for _, f in files if f.current_context), "")
    if not wanted:
        raise BadInputError(f"{where}: current-context", "is missing; set it or name a context")
    path, named = _find(files, "contexts", wanted, lambda f: f.contexts)
    chosen = named.context
    at = f"{path}: contexts[{wanted}]"
    if not chosen.cluster:
        raise BadInputError(f"{at}.context.cluster", "is missing; name one of `clusters`")
    cluster_file, cluster = _find(files, "clusters", chosen.cluster, lambda f: f.clusters)
    if not chosen.user:
        user_file, user = path, KubeconfigUser()
    else:
        user_file, entry = _find(files, "users", chosen.user, lambda f: f.users)
        user = entry.user or KubeconfigUser()
    namespace = chosen.namespace or "default"
    return ChosenContext(cluster.cluster, cluster_file, user, user_file, namespace, wanted)


def _find(
    files: Sequence[tuple[Path, KubeconfigFile]],
    field: str,
    name: str,
    entries: Callable[[KubeconfigFile], list[_Named] | None],
) -> tuple[Path, _Named]:
    known: list[str] = []
    for path, file in files:
        for entry in entries(file) or ():
            if entry.name == name:
                return path, entry
            known.append(entry.name)
    near, listed = nearest(name, known), ", ".join(known) or "none"
    hint = f"did you mean {near!r}? " if near else ""
    problem = f"there is no {name!r}; {hint}there are: {listed}"
    raise BadInputError(f"{files[0][0]}: {field}", problem)


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


def load(
    context: str = "",
    *,
    paths: tuple[Path, ...] = (),
    env: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> Endpoint:
    """Return the API server's endpoint as kubectl finds it: from `paths`, else KUBECONFIG, else the
    service account if this is a pod, else ~/.kube/config.

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
        raise BadInputError(
            f"{user_path}.{missing}", "is missing: a client certificate needs its key"
        )
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
    """Return the inline data, or else the file's content, as kubectl does; empty if neither is
    given."""
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
