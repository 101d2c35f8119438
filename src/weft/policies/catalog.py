"""The policies that come with Weft, by name. A new one is a file beside this and a line in here."""

from weft.framework.registry import Registry
from weft.policies.alnair import AlnairCostSaving, AlnairHighPerformance
from weft.policies.best_fit import BestFit
from weft.policies.binpack import Binpack
from weft.policies.dot_product import DotProduct
from weft.policies.elastic_binpack import ElasticBinpack
from weft.policies.elastic_spread import ElasticSpread
from weft.policies.exclusive import Exclusive
from weft.policies.fgd import Fgd
from weft.policies.first_fit import FirstFit
from weft.policies.gpu_clustering import GpuClustering
from weft.policies.gpu_packing import GpuPacking
from weft.policies.gpushare import GpuShare
from weft.policies.nano_binpack import NanoBinpack
from weft.policies.nano_spread import NanoSpread
from weft.policies.random_choice import Random
from weft.policies.smallest_first import SmallestFirst
from weft.policies.spread import Spread

BUILT_IN = (
    AlnairCostSaving, AlnairHighPerformance, BestFit, Binpack, DotProduct, ElasticBinpack,
    ElasticSpread, Exclusive, Fgd, FirstFit, GpuClustering, GpuPacking, GpuShare, NanoBinpack,
    NanoSpread, Random, SmallestFirst, Spread,
)  # fmt: skip


def built_in() -> Registry:
    """A new registry with all of them, to which plugins may be added."""
    registry = Registry()
    for policy in BUILT_IN:
        registry.register(policy)
    return registry
