"""The policies that come with Weft, by name. A new one is a file beside this and a line in here."""

from weft.core.framework.registry import Registry
from weft.core.policies.alnair import AlnairCostSaving, AlnairHighPerformance
from weft.core.policies.auto import Auto
from weft.core.policies.best_fit import BestFit
from weft.core.policies.binpack import Binpack
from weft.core.policies.coscheml import CoschemlPolicy
from weft.core.policies.dot_product import DotProduct
from weft.core.policies.elastic_binpack import ElasticBinpack
from weft.core.policies.elastic_spread import ElasticSpread
from weft.core.policies.exclusive import Exclusive
from weft.core.policies.ferikoglou import Ferikoglou
from weft.core.policies.ferikoglou_safe import FerikoglouSafe
from weft.core.policies.fgd import Fgd
from weft.core.policies.first_fit import FirstFit
from weft.core.policies.genius import GeniusPolicy
from weft.core.policies.gpu_clustering import GpuClustering
from weft.core.policies.gpu_packing import GpuPacking
from weft.core.policies.gpushare import GpuShare
from weft.core.policies.horus import Horus
from weft.core.policies.interference import InterferencePolicy
from weft.core.policies.kube_knots_cbp import KubeKnotsCbp
from weft.core.policies.kube_knots_pp import KubeKnotsPp
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.load_aware import LoadAware
from weft.core.policies.lucid import Lucid
from weft.core.policies.nano_binpack import NanoBinpack
from weft.core.policies.nano_load_binpack import NanoLoadBinpack
from weft.core.policies.nano_load_spread import NanoLoadSpread
from weft.core.policies.nano_spread import NanoSpread
from weft.core.policies.random_choice import Random
from weft.core.policies.res_ag import ResAg
from weft.core.policies.smallest_first import SmallestFirst
from weft.core.policies.spread import SpreadPolicy

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
    """A new registry with all of them, to which plugins may be added."""
    registry = Registry()
    for policy in BUILT_IN:
        registry.register(policy)
    return registry
