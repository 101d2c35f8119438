"""The policies that come with Weft, by name. A new one is a file beside this and a line in here."""

from weft.framework.registry import Registry
from weft.policies.alnair import AlnairCostSaving, AlnairHighPerformance
from weft.policies.auto import Auto
from weft.policies.best_fit import BestFit
from weft.policies.binpack import Binpack
from weft.policies.coscheml import Coscheml
from weft.policies.dot_product import DotProduct
from weft.policies.elastic_binpack import ElasticBinpack
from weft.policies.elastic_spread import ElasticSpread
from weft.policies.exclusive import Exclusive
from weft.policies.ferikoglou import Ferikoglou
from weft.policies.ferikoglou_safe import FerikoglouSafe
from weft.policies.fgd import Fgd
from weft.policies.first_fit import FirstFit
from weft.policies.genius import Genius
from weft.policies.gpu_clustering import GpuClustering
from weft.policies.gpu_packing import GpuPacking
from weft.policies.gpushare import GpuShare
from weft.policies.horus import Horus
from weft.policies.interference import Interference
from weft.policies.kube_knots_cbp import KubeKnotsCbp
from weft.policies.kube_knots_pp import KubeKnotsPp
from weft.policies.load_aware import LoadAware
from weft.policies.lucid import Lucid
from weft.policies.nano_binpack import NanoBinpack
from weft.policies.nano_load_binpack import NanoLoadBinpack
from weft.policies.nano_load_spread import NanoLoadSpread
from weft.policies.nano_spread import NanoSpread
from weft.policies.random_choice import Random
from weft.policies.res_ag import ResAg
from weft.policies.smallest_first import SmallestFirst
from weft.policies.spread import Spread

BUILT_IN = (
    AlnairCostSaving, AlnairHighPerformance, Auto, BestFit, Binpack, Coscheml, DotProduct,
    ElasticBinpack, ElasticSpread, Exclusive, Ferikoglou, FerikoglouSafe, Fgd, FirstFit, Genius,
    GpuClustering, GpuPacking, GpuShare, Horus, Interference, KubeKnotsCbp, KubeKnotsPp, LoadAware,
    Lucid, NanoBinpack, NanoLoadBinpack, NanoLoadSpread, NanoSpread, Random, ResAg, SmallestFirst,
    Spread,
)  # fmt: skip


def built_in() -> Registry:
    """A new registry with all of them, to which plugins may be added."""
    registry = Registry()
    for policy in BUILT_IN:
        registry.register(policy)
    return registry
