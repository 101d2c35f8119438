"""Opens snapshots for commands.

state = open_snapshot(Path("snapshot.json"))
state.engine.ledger        the shares that pods hold; state.nodes, state.bound, state.pending()
state.live                 the cluster as a newly started scheduler sees it"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from weft.cli.output import print_warning

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration
    from weft.cluster.snapshot.form import ClusterSnapshot
    from weft.cluster.snapshot.state import SnapshotState

SYSTEM_NAMESPACE, MANIFEST_NAME, MANIFEST_KEY = "weft-system", "weft-config", "weft.yaml"
"""Namespace, name and key of the ConfigMap that has the configuration in Weft's own manifests."""

SnapshotFile = Annotated[
    Path | None,
    Option("--snapshot", help="A file that `weft snapshot` wrote; - reads stdin."),
]


def open_snapshot(path: Path, config: "Configuration | None" = None) -> "SnapshotState":
    """Return the state in this file: nodes, pods, ledger and engine, as in a newly started
    scheduler.

    `config` replaces the configuration in the snapshot. `BadInputError` for a file that is
    truncated, of another version, or no snapshot. Kinds of objects that the snapshot lacks are
    named on stderr."""
    from weft.cli.policies import registry
    from weft.cluster.snapshot.file import read
    from weft.cluster.snapshot.state import snapshot_state
    from weft.host.plan import reading_cluster

    logging.getLogger("weft").addHandler(
        logging.NullHandler()
    )  # the command reports problems itself
    snapshot = read(path)
    _tell(snapshot, path)
    chosen = config or snapshot_configuration(snapshot, path)
    known = registry()
    return snapshot_state(snapshot, lambda client: reading_cluster(chosen, known, client))


def snapshot_configuration(snapshot: "ClusterSnapshot", path: Path) -> "Configuration":
    """Return the configuration that was in use when the snapshot was taken."""
    from weft.cluster.snapshot.configuration import configuration_of

    return configuration_of(snapshot.configuration, str(path))


def _tell(snapshot: "ClusterSnapshot", path: Path) -> None:
    if snapshot.unread:
        print_warning(f"{path} was taken without {', '.join(snapshot.unread)}")
