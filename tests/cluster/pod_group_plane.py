"""A control plane of Kubernetes 1.37 with its PodGroups: they are off by default, as an API and as
what kube-scheduler does."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from binaries import CONTROL_PLANE, find_or_build
from control_plane import ControlPlane
from go_tools import NoBinariesError

from fakes.drawn_groups import GROUPS

VERSION = "1.37.1"
GATES = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
FAST = (
    "ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection,PodGroupProtection,"
    "DefaultTolerationSeconds"
)


@contextlib.contextmanager
def pod_group_plane(
    folder: Path,
    names: Sequence[str] = CONTROL_PLANE,
    *,
    gates: str = GATES,
    versions: Sequence[str] = (GROUPS,),
) -> Iterator[ControlPlane]:
    """Run it inside; the test is skipped where these programs cannot be had, and fails in CI."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_KUBERNETES_VERSION", VERSION)
        patch.delenv("KUBEBUILDER_ASSETS", raising=False)
        try:
            found = find_or_build(print, names)
        except NoBinariesError as error:
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI must run these tests: {error}", pytrace=False)
            pytest.skip(str(error))
    options = (
        f"--feature-gates={gates}",
        f"--runtime-config={','.join(f'{version}=true' for version in versions)}",
        f"--disable-admission-plugins={FAST}",
    )
    with ControlPlane(found, folder, options) as plane:
        yield plane
