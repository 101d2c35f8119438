"""Random clusters as each original leaves them: filled by its own rule, marked in its own words.

Nothing of Weft decides or writes here. What each pod truly holds is kept beside: `held`.
"""

from random import Random
from typing import Any, NamedTuple

Json = dict[str, Any]
MADE = "2026-03-01T10:00:00Z"
SYSTEMS = (
    *("elastic", "gpushare", "coscheml", "alnair", "hami", "nvidia", "genius"),
    "kubeknots",
)
SCHEDULERS = {"genius": "genius-scheduler", "kubeknots": "custom-scheduler"}
"""The schedulerName of pods that ask by labels: no other scheduler reads these."""
NODE_OF = "example.org/original"
"""The label of each node that says whose it is."""
CARDS = (16_160, 32_510, 40_960)


class Held(NamedTuple):
    """The true holding of a pod: (GPU, MiB, thousandths) of its node. `told`: its marks name
    them."""

    node: str
    system: str
    gpus: tuple[tuple[int, int, int], ...]
    told: bool


class FilledCluster:
    """Nodes of one original each (of `crowded` alone, a crowded one), filled as it would."""

    def __init__(self, seed: int, crowded: str = "") -> None:
        self.random = Random(seed)
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.held: dict[str, Held] = {}
        self.cards: dict[str, tuple[int, int]] = {}  # how many, and of how many MiB it reports
        self.system: dict[str, str] = {}
        for number in range(1 if crowded else self.random.randint(1, 4)):
            self._add_node(f"n{number}", crowded or self.random.choice(SYSTEMS))
        for number in range(self.random.randint(0, 14)):
            self._add_pod(f"p{number}", self.random.choice(sorted(self.nodes)))

    def free(self, node: str) -> list[tuple[int, int]]:
        """MiB and thousandths that truly are free of each card."""
        count, mib = self.cards[node]
        left = [[mib, 1000] for _ in range(count)]
        for held in self.held.values():
            if held.node == node:
                for gpu, taken_mib, milli in held.gpus:
                    left[gpu][0] -= taken_mib
                    left[gpu][1] -= milli
        return [(mib, milli) for mib, milli in left]

    def lose_marks(self, *, whole: bool = False) -> None:
        """Marks of some pods with shares (or whole cards) are gone, or were never written."""
        for name, pod in self.pods.items():
            held = self.held[name]
            alike = all((milli == 1000) is whole for _, _, milli in held.gpus)
            if held.told and alike and self.random.random() < (0.8 if whole else 0.3):
                pod["metadata"] |= {"annotations": {}, "labels": {}}
                self.held[name] = held._replace(told=False)

    def goes_on(self, name: str, node: str, limits: Json, marks: Json, mib: int = 0) -> None:
        """The original reads a pod that somebody else bound: by its own marks, else it picks.

        `mib` is what its label asks, where it asks by label.
        """
        system, (_, card_mib) = self.system[node], self.cards[node]
        if system == "elastic":
            assert marks["elasticgpu.io/assumed"] == "true"
            cards = marks["elasticgpu.io/container-main"].split(",")
            asked_mib = int(limits["elasticgpu.io/gpu-memory"])
            gpus = [(int(card), asked_mib, 0) for card in cards]
        elif system in ("gpushare", "coscheml"):
            prefix = "ALIYUN_COM_GPU_MEM_"
            assert marks[f"{prefix}POD"] == limits["aliyun.com/gpu-mem"]
            assert marks[f"{prefix}ASSIGNED"] == "false"
            unit_mib = 1024 if system == "gpushare" else 1
            gpus = [(int(marks[f"{prefix}IDX"]), int(marks[f"{prefix}POD"]) * unit_mib, 0)]
        elif system == "kubeknots":  # one GPU, and the label is in its own ledger
            gpus = [(0, mib, 0)]
        elif system == "hami" and "nvidia.com/gpumem" in limits:
            devices = marks["hami.io/vgpu-devices-allocated"].removesuffix(";").split(":")[:-1]
            gpus = [(int(d[0]), int(d[2]), 10 * int(d[3])) for d in (d.split(",") for d in devices)]
        elif system == "alnair":
            units = int(limits["alnair/vgpu-memory"])
            held_mib = units * card_mib // ((card_mib + 512) // 1024)
            gpus = [(g, held_mib, 0) for g, (m, _) in enumerate(self.free(node)) if m >= held_mib]
            gpus = gpus[:1]
            assert gpus
        else:
            idle = self._idle(node)[: int(limits["nvidia.com/gpu"])]
            assert len(idle) == int(limits["nvidia.com/gpu"])
            gpus = [(gpu, card_mib, 1000) for gpu in idle]
        self.held[name] = Held(node, system, tuple(gpus), told=True)

    def fill_on(self, pods: int) -> None:
        """So many more pods ask the originals."""
        for number in range(pods):
            self._add_pod(f"later{number}", self.random.choice(sorted(self.nodes)))

    def _idle(self, node: str) -> list[int]:
        taken = {gpu for h in self.held.values() if h.node == node for gpu, _, _ in h.gpus}
        return [gpu for gpu in range(self.cards[node][0]) if gpu not in taken]

    def _add_node(self, name: str, system: str) -> None:
        count, mib = self.random.randint(1, 4), self.random.choice(CARDS)
        marks: dict[str, str] = {}
        labels: dict[str, str] = {NODE_OF: system}
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        if system == "elastic":
            amounts |= {
                "elasticgpu.io/gpu-core": str(100 * count),
                "elasticgpu.io/gpu-memory": str(mib * count),
            }
        elif system == "gpushare":
            mib = mib // 1024 * 1024
            amounts |= {
                "aliyun.com/gpu-mem": str(mib // 1024 * count),
                "aliyun.com/gpu-count": str(count),
            }
        elif system == "coscheml":  # a plugin that counts in MiB
            amounts |= {"aliyun.com/gpu-mem": str(mib * count), "aliyun.com/gpu-count": str(count)}
        elif system == "alnair":
            uuids = ",".join(f"GPU-{name}-{i}" for i in range(count))
            chunks = (mib + 512) // 1024
            mib = chunks * 1024 - 512
            marks = {
                "ai.centaurus.io/physical-gpu-count": str(count),
                "ai.centaurus.io/physical-gpu-uuids": uuids,
                "ai.centaurus.io/vitual-gpu-count": str(chunks),
            }
            amounts |= {"alnair/vgpu-memory": str(chunks * count), "alnair/vgpu-compute": "100"}
        else:
            count = 1 if system == "kubeknots" else count
            labels |= {
                "nvidia.com/gpu.count": str(count),
                "nvidia.com/gpu.memory": str(mib),
                "nvidia.com/gpu.product": "V100",
            }
            amounts["nvidia.com/gpu"] = str(count * 10 if system == "hami" else count)
        self.cards[name], self.system[name] = (count, mib), system
        self.nodes[name] = {
            "metadata": {"name": name, "labels": labels, "annotations": marks},
            "spec": {},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def _add_pod(self, name: str, node: str) -> None:
        fill = getattr(self, f"_{self.system[node]}")
        made = fill(name, node)
        if made is None:
            return  # it found no place, as the original would have it
        limits, marks, labels, gpus = made
        told = self.system[node] not in ("nvidia", "genius", "kubeknots")
        self.held[name] = Held(node, self.system[node], tuple(gpus), told)
        requests = {**limits, "cpu": "100m"}
        self.pods[name] = {
            "metadata": {
                "name": name,
                "namespace": self.random.choice(("ml", "team")),
                "uid": f"uid-{name}",
                "creationTimestamp": MADE,
                "annotations": marks,
                "labels": labels,
            },
            "spec": {
                "schedulerName": SCHEDULERS.get(self.system[node], "default-scheduler"),
                "nodeName": node,
                "containers": [
                    {
                        "name": "lammps" if self.system[node] == "coscheml" else "main",
                        "resources": {"limits": limits, "requests": requests},
                    }
                ],
            },
            "status": {"phase": self.random.choice(("Running", "Running", "Pending"))},
        }

    # --- each original: (limits, annotations, labels, what is held), None where nothing fits ---

    def _elastic(self, name: str, node: str) -> Any:
        """Shares by cores and MiB, ties to the last GPU; whole cards from 100 percent on."""
        free, (count, card_mib) = self.free(node), self.cards[node]
        marks = {"elasticgpu.io/assumed": "true"}
        if self.random.random() < 0.3:
            wanted, idle = self.random.randint(1, 2), self._idle(node)
            if len(idle) < wanted:
                return None
            chosen = idle[:wanted]
            marks["elasticgpu.io/container-main"] = ",".join(map(str, chosen))
            limits = {"elasticgpu.io/gpu-core": str(100 * wanted)}
            gpus = [(gpu, card_mib, 1000) for gpu in chosen]
            return limits, marks, {"elasticgpu.io/assumed": "true"}, gpus
        mib, core = self.random.choice((256, 3_000, 9_000)), self.random.choice((0, 10, 50))
        fits = [g for g in range(count) if free[g][0] >= mib and free[g][1] >= 10 * core]
        if not fits:
            return None
        marks["elasticgpu.io/container-main"] = str(fits[-1])
        limits = {"elasticgpu.io/gpu-memory": str(mib)}
        limits |= {"elasticgpu.io/gpu-core": str(core)} if core else {}
        return limits, marks, {"elasticgpu.io/assumed": "true"}, [(fits[-1], mib, 10 * core)]

    def _gpushare(self, name: str, node: str) -> Any:
        """Best fit in whole GiB, ties to the lowest index; assigned by the device plugin."""
        units, card_mib = self.random.randint(1, 12), self.cards[node][1]
        card_units = card_mib // 1024
        left = [card_units - (card_mib - mib) // 1024 for mib, _ in self.free(node)]
        fits = [(have, gpu) for gpu, have in enumerate(left) if have >= units]
        if not fits:
            return None
        gpu = min(fits)[1]
        prefix = "ALIYUN_COM_GPU_MEM_"
        marks = {
            f"{prefix}IDX": str(gpu),
            f"{prefix}DEV": str(card_units),
            f"{prefix}POD": str(units),
            f"{prefix}ASSIGNED": "true",
            f"{prefix}ASSUME_TIME": "1772359200000000000",
        }
        return {"aliyun.com/gpu-mem": str(units)}, marks, {}, [(gpu, units * 1024, 0)]

    def _coscheml(self, name: str, node: str) -> Any:
        """gpushare's best fit, in MiB, and two applications a GPU at most."""
        mib, card_mib = self.random.choice((300, 4_000, 9_000)), self.cards[node][1]
        here = [held.gpus[0][0] for held in self.held.values() if held.node == node]
        fits = [
            (have, gpu)
            for gpu, (have, _) in enumerate(self.free(node))
            if have >= mib and here.count(gpu) < 2
        ]
        if not fits:
            return None
        gpu = min(fits)[1]
        prefix = "ALIYUN_COM_GPU_MEM_"
        said = {"IDX": gpu, "DEV": card_mib, "POD": mib, "ASSIGNED": "true", "ASSUME_TIME": 1}
        marks = {f"{prefix}{key}": str(value) for key, value in said.items()}
        return {"aliyun.com/gpu-mem": str(mib)}, marks, {}, [(gpu, mib, 0)]

    def _kubeknots(self, name: str, node: str) -> Any:
        """A label of MiB; the one GPU has so much available; it tells nobody but an Event."""
        mib = self.random.choice((872, 6_994, 8_388))
        if self.free(node)[0][0] < mib:
            return None
        return {}, {}, {"GPU_MEM_REQ": str(mib)}, [(0, mib, 0)]

    def _alnair(self, name: str, node: str) -> Any:
        """Chunks of the first card as text that has them all: one is its part of the card."""
        units, (_, card_mib) = self.random.randint(1, 10), self.cards[node]
        held_mib = units * card_mib // ((card_mib + 512) // 1024)
        for gpu, (mib, milli) in enumerate(self.free(node)):
            if mib >= held_mib + units and milli >= 100:
                ids = ",".join(f"GPU-{node}-{gpu}_{number}" for number in range(units))
                marks = {
                    "ai.centaurus.io/alnair-gpu-id": ids,
                    "ai.centaurus.io/alnair-id": "abcde",
                    "ai.centaurus.io/scheduler-timestamp": "1772359200000000000",
                }
                limits = {"alnair/vgpu-memory": str(units), "alnair/vgpu-compute": "10"}
                return limits, marks, {}, [(gpu, held_mib, 100)]
        return None

    def _hami(self, name: str, node: str) -> Any:
        """MiB and percent of cores of distinct cards, by index here: no UUIDs are known."""
        mib, core = self.random.choice((1_000, 5_000, 12_000)), self.random.choice((0, 30))
        wanted = self.random.choice((1, 1, 2))
        free = self.free(node)
        fits = [g for g, (m, c) in enumerate(free) if m >= mib and c >= 10 * core][:wanted]
        if len(fits) < wanted:
            return None
        devices = "".join(f"{gpu},NVIDIA,{mib},{core}:" for gpu in fits) + ";"
        marks = {"hami.io/vgpu-node": node, "hami.io/vgpu-devices-allocated": devices}
        limits = {"nvidia.com/gpu": str(wanted), "nvidia.com/gpumem": str(mib)}
        limits |= {"nvidia.com/gpucores": str(core)} if core else {}
        return limits, marks, {}, [(gpu, mib, 10 * core) for gpu in fits]

    def _nvidia(self, name: str, node: str) -> Any:
        """Whole cards, which the kubelet picks and tells nobody."""
        wanted, idle = self.random.randint(1, 2), self._idle(node)
        if len(idle) < wanted:
            return None
        chosen = self.random.sample(idle, wanted)
        gpus = [(gpu, self.cards[node][1], 1000) for gpu in chosen]
        return {"nvidia.com/gpu": str(wanted)}, {}, {}, gpus

    def _genius(self, name: str, node: str) -> Any:
        """Cards by NVIDIA's resource; its labels ask for memory that was free when it looked."""
        made = self._nvidia(name, node)
        if made is None:
            return None
        limits, marks, _, gpus = made
        labels = {"genius/gpu-number": str(len(gpus)), "genius/gpu-memory-each": "1000"}
        return limits, marks, labels, gpus
