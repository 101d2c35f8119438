"""`weft snapshot`: writes a live cluster's state to a file."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, echo

from weft.cli.cluster_question import answer
from weft.cli.options import Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_warning
from weft.cli.snapshot_files import MANIFEST_KEY, MANIFEST_NAME, SYSTEM_NAMESPACE
from weft.files.writing import unwritten
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration
    from weft.cluster.snapshot.capture import CapturedObjects
    from weft.cluster.snapshot.form import ClusterSnapshot
    from weft.kube.client import ApiClient

_MOST_BROKEN = 5
_OF_CLAIMS = ("PersistentVolume", "PersistentVolumeClaim")


_File = Annotated[Path, Argument(help="The file to write; gzipped where its name ends in .gz.")]
_From = Annotated[
    str,
    Option(
        "--from",
        help="What `kubectl get nodes,pods,… -A -o json` wrote; - reads standard input.  "
        "[default: ask the cluster]",
        show_default=False,
    ),
]
_Config = Annotated[
    Path | None,
    Option(
        help="The configuration in use.  "
        f"[default: ConfigMap {SYSTEM_NAMESPACE}/{MANIFEST_NAME}, else built in]"
    ),
]
_Anonymous = Annotated[
    bool, Option("--anonymous", help="Replace names by hashes, consistently; the key is not kept.")
]


def snapshot(
    file: _File = Path("snapshot.json"),
    objects: _From = "",
    config: _Config = None,
    anonymously: _Anonymous = False,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Write a cluster's state, as far as Weft decides by it, to a file for use elsewhere.

    Includes nodes, pods, volumes, disruption budgets, priority classes and the configuration.
    Secrets are never read; environment values, arguments, images and annotations other than GPU
    schedulers' are left out. `weft explain pod --snapshot` and `weft simulate --snapshot` read the
    file.
    """
    if objects and (kubeconfig or context):
        raise BadInputError(objects, "is the state of the cluster; remove --kubeconfig, --context")
    if objects:
        captured, settings = _given(objects), _configured(config)
    else:
        captured, settings = answer(kubeconfig, context, lambda client: asked(client, config))
    from weft.cluster.snapshot.anonymous import anonymous
    from weft.cluster.snapshot.capture import snapshot_of

    taken = snapshot_of(captured, settings, datetime.datetime.now(datetime.UTC))
    if anonymously:
        taken = anonymous(taken)
    _write(taken, file)
    for kind in captured.unread:
        print_warning(f"{kind}: cannot be read for lack of permission, and is left out")
    for name in captured.broken[:_MOST_BROKEN]:
        print_warning(f"{name}: cannot be read, and is left out")
    _say(taken, file, output)


def _configured(path: Path | None) -> "Configuration":
    from weft.cli.scheduler import configuration

    return configuration(path)


def _given(objects: str) -> "CapturedObjects":
    from weft.cluster.snapshot.capture import CapturedObjects
    from weft.cluster.snapshot.form import KINDS
    from weft.cluster.state.pod_reader import claims_of
    from weft.kube.listed_objects import objects_by_kind

    objects_of = objects_by_kind(
        objects, {kind: resource.type for kind, (_, resource) in KINDS.items()}
    )
    claims = any(claims_of(pod) for pod in objects_of["Pod"])
    lacking = tuple(kind for kind in _OF_CLAIMS if claims and not objects_of[kind])
    by_field = {field: objects_of[kind] for kind, (field, _) in KINDS.items()}
    return CapturedObjects(by_field, unread=lacking)


async def asked(client: "ApiClient", path: Path | None) -> "tuple[CapturedObjects, Configuration]":
    """Read the cluster's objects, and the configuration as `configuration_in_use` does."""
    from weft.cluster.snapshot.capture import captured

    config = await configuration_in_use(client, path)
    return await captured(client, config), config


async def configuration_in_use(client: "ApiClient", path: Path | None) -> "Configuration":
    """Read the configuration from the file `path`, or from the cluster's ConfigMap if `path` is
    None.

    Without a ConfigMap, return the built-in configuration, with a note on stderr."""
    from weft.cluster.config.read import decode
    from weft.cluster.snapshot.capture import configuration_text

    where = f"ConfigMap {SYSTEM_NAMESPACE}/{MANIFEST_NAME}, {MANIFEST_KEY}"
    text = ""
    if path is None:
        text = await configuration_text(client, SYSTEM_NAMESPACE, MANIFEST_NAME, MANIFEST_KEY)
        if not text:
            echo(f"weft: {where}: not found; using the built-in configuration", err=True)
    return decode(text.encode(), where) if text else _configured(path)


def _write(taken: "ClusterSnapshot", file: Path) -> None:
    from weft.cluster.snapshot.file import write

    try:
        write(taken, file)
    except OSError as error:
        raise unwritten(str(file), error) from None


def _say(taken: "ClusterSnapshot", file: Path, output: ListOutput) -> None:
    bound = sum(bool(pod.spec.node_name) for pod in taken.pods)
    said = {
        "file": str(file),
        "bytes": file.stat().st_size if file.is_file() else 0,
        "takenAt": taken.taken_at,
        "nodes": len(taken.nodes),
        "pods": len(taken.pods),
        "bound": bound,
        "anonymous": taken.anonymous,
        "unread": list(taken.unread),
    }
    if output is ListOutput.json:
        print(json_text(said))
        return
    print(
        f"{file}: {len(taken.nodes):,} nodes, {len(taken.pods):,} pods ({bound:,} on nodes), "
        f"{said['bytes']:,} bytes"
    )
