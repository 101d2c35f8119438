"""The kubeconfig file: its form, and how several files are merged.

As in kubectl, the first file to name a cluster, user, context or current context wins. Paths in a
file are relative to that file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from weft.files.reading import did_you_mean, raw_bytes
from weft.files.yaml_text import BrokenYamlError, load
from weft.model import BadInputError
from weft.model.nearest import nearest


class KubeconfigForm(msgspec.Struct, rename="kebab", frozen=True):
    """Base: snake_case here, kebab-case in the file; unknown fields are skipped."""


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
    """Return the existing ones of these files, decoded; `BadInputError` if none exists."""
    files = []
    for path in paths:
        try:
            text = raw_bytes(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadInputError(str(path), f"cannot be read: {error.strerror}") from error
        try:
            file = msgspec.convert(load(text), KubeconfigFile)
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
