"""NVML's library, opened, and how it is asked: many questions have no answer on many GPUs."""

from collections.abc import Callable
from typing import Any

from weft.model.errors import install_extra
from weft.node.devices.reader import DeviceError, NoDriverError

MIB = 1 << 20


def library() -> Any:
    """`pynvml`, opened; `DeviceError` says what is missing; without driver, `NoDriverError`."""
    try:
        import pynvml
    except ImportError as error:
        raise DeviceError(f"no nvidia-ml-py here; {install_extra('gpu')}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriverError(f"no NVIDIA GPU found: NVML says: {error}") from error
    return pynvml


def ask(nvml: Any, question: Callable[[], Any]) -> Any:
    """NVML's answer; None where the GPU, the driver or nvidia-ml-py has none."""
    # Its library says the last one of a driver that is older than itself.
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", AttributeError)
    try:
        return question()
    except (nvml.NVMLError, AttributeError, mismatch):
        return None


def running(nvml: Any, handle: Any, kind: str = "Compute") -> list[Any]:
    """The processes of this kind (Compute, MPSCompute, Graphics) on a device; older drivers know
    an older call."""
    for version in ("", "_v2"):
        name = f"nvmlDeviceGet{kind}RunningProcesses{version}"
        processes = ask(nvml, lambda name=name: getattr(nvml, name)(handle))  # type: ignore[misc]
        if processes is not None:
            return list(processes)
    return []


def text(value: str | bytes) -> str:
    """Older nvidia-ml-py says bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def model_of(name: str) -> str:
    """A GPU's name as nodes' labels spell it: NVIDIA-H100-80GB-HBM3."""
    return "-".join(name.split())
