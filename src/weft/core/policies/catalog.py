"""All policies that come with Weft. To add a policy, write a class in its family's file (or in a
new file) and add it to `BUILT_IN`."""

from weft.core.framework.registry import Registry
from weft.core.policies.alnair import AlnairCostSaving, AlnairHighPerformance
from weft.core.policies.auto import Auto
from weft.core.policies.coscheml import CoschemlPolicy
from weft.core.policies.elastic import ElasticBinpack, ElasticSpread
from weft.core.policies.fgd import Fgd
from weft.core.policies.genius import GeniusPolicy
from weft.core.policies.interference import InterferencePolicy
from weft.core.policies.kube_knots import (
    Ferikoglou,
    FerikoglouSafe,
    KubeKnotsCbp,
    KubeKnotsPp,
    ResAg,
    SmallestFirst,
)
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.load_aware import Horus, LoadAware
from weft.core.policies.lucid import Lucid
from weft.core.policies.nano import NanoBinpack, NanoLoadBinpack, NanoLoadSpread, NanoSpread
from weft.core.policies.packing import (
    BestFit,
    Binpack,
    DotProduct,
    FirstFit,
    GpuClustering,
    GpuPacking,
    GpuShare,
)
from weft.core.policies.spreading import Exclusive, Random, SpreadPolicy

BUILT_IN = (
    AlnairCostSaving,
    AlnairHighPerformance,
    Auto,
    BestFit,
    Binpack,
    CoschemlPolicy,
    DotProduct,
    ElasticBinpack,
    ElasticSpread,
    Exclusive,
    Ferikoglou,
    FerikoglouSafe,
    Fgd,
    FirstFit,
    GeniusPolicy,
    GpuClustering,
    GpuPacking,
    GpuShare,
    Horus,
    InterferencePolicy,
    KubeKnotsCbp,
    KubeKnotsPp,
    LeastStranding,
    LoadAware,
    Lucid,
    NanoBinpack,
    NanoLoadBinpack,
    NanoLoadSpread,
    NanoSpread,
    Random,
    ResAg,
    SmallestFirst,
    SpreadPolicy,
)


def built_in() -> Registry:
    """Create a registry with all built-in policies, to which plugins may be added."""
    registry = Registry()
    for policy in BUILT_IN:
        registry.register(policy)
    return registry
