"""Snapshots as commands read them.

state = open_snapshot(Path("snapshot.json"))
state.engine.ledger        who holds what; state.nodes, state.bound, state.pending()
state.live                 the cluster as a scheduler sees it that has just started
"""

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
"""Where Weft's own manifests have the configuration: a ConfigMap, and its key."""

SnapshotFile = Annotated[
    Path | None,
    Option("--snapshot", help="A cluster's state in a file, of `weft snapshot`; - reads stdin."),
]


def open_snapshot(path: Path, config: "Configuration | None" = None) -> "SnapshotState":
    """The state in this file: nodes, pods, ledger and engine, filled as a scheduler's that starts.

    `config` decides instead of the configuration in the snapshot. `BadInputError` for a file that
    is cut off, of another version, or no snapshot. What the snapshot lacks is said on stderr.
    """
    from weft.cli.policies import registry
    from weft.cluster.snapshot.file import read
    from weft.cluster.snapshot.state import snapshot_state
    from weft.host.plan import reading_cluster

    logging.getLogger("weft").addHandler(logging.NullHandler())  # who asks is told, no log
    snapshot = read(path)
    _tell(snapshot, path)
    chosen = config or snapshot_configuration(snapshot, path)
    known = registry()
    return snapshot_state(snapshot, lambda client: reading_cluster(chosen, known, client))


def snapshot_configuration(snapshot: "ClusterSnapshot", path: Path) -> "Configuration":
    """The configuration that was in use where the snapshot was taken."""
    from weft.cluster.snapshot.configuration import configuration_of

    return configuration_of(snapshot.configuration, str(path))


def _tell(snapshot: "ClusterSnapshot", path: Path) -> None:
    if snapshot.unread:
        print_warning(f"{path} was taken without {', '.join(snapshot.unread)}")
