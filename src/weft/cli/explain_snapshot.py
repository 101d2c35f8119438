"""`weft explain pod --snapshot`: what a scheduler that starts on that state would say."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.snapshot_files import open_snapshot
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.snapshot.state import SnapshotState
    from weft.core.explain.explanation import Explanation


def explain_from(path: Path, name: str) -> "Explanation":
    """Explains NAMESPACE/NAME, or NAME where one pod alone has it."""
    from weft.cluster.scheduler.explain_service import Explainer

    state = open_snapshot(path)
    namespace, pod = _found(state, path, name)
    explained = asyncio.run(Explainer(state.live, None).explain(namespace, pod))
    assert explained is not None
    return explained


def _found(state: "SnapshotState", path: Path, name: str) -> tuple[str, str]:
    from weft.model.nearest import nearest

    known = state.live.pods.pods
    namespace, slash, pod = name.rpartition("/")
    keys = [key for key in known if key[1] == pod and (not slash or key[0] == namespace)]
    if len(keys) == 1:
        return keys[0]
    if keys:
        names = ", ".join(sorted("/".join(key) for key in keys)[:5])
        raise BadInputError(str(path), f"has {len(keys)} pods {name}: {names}; name one of them")
    near = nearest(name, ["/".join(key) for key in known] if slash else [key[1] for key in known])
    hint = f"; did you mean {near!r}?" if near else ""
    raise BadInputError(str(path), f"has no pod {name}{hint}")
