"""Facts of a GPU from the machine's files, which NVML does not provide: device nodes, NUMA node."""

from pathlib import Path

SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def shared_paths(root: Path) -> tuple[str, ...]:
    """Return the existing device nodes that every container with a GPU needs."""
    return tuple(f"/dev/{name}" for name in SHARED if (root / "dev" / name).exists())


def card_paths(minor: int) -> tuple[str, ...]:
    """Return the card's device node."""
    return (f"/dev/nvidia{minor}",)


def instance_paths(
    root: Path, minor: int, gpu_instance: int, compute_instance: int
) -> tuple[str, ...]:
    """Return the card's device node and the capability nodes of its instance."""
    gpu = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
    files = (gpu / "access", gpu / f"ci{compute_instance}" / "access")
    minors = [_device_minor(file) for file in files]
    caps = [f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in minors if cap is not None]
    return (*card_paths(minor), *caps)


def numa_node(root: Path, pci_bus_id: str) -> int | None:
    """Return the NUMA node of the device on this bus; None if there is only one, or it is
    unknown."""
    # NVML's domain has eight digits, the kernel's four.
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        text = (root / f"sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text()
        node = int(text)
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _device_minor(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "DeviceFileMinor" and value.strip().isdecimal():
            return int(value)
    return None
