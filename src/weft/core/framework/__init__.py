"""Defines the hooks that policies implement, and calls them and checks what they return.

Contents: the policy contract, feasibility, the search over several devices, profiles and the
registry. Not here: strategies (`core/policies/`), decisions (`core/engine/`) and accounts
(`core/ledger/`)."""

from weft.core.framework.demand import Codes, Demand, Need
from weft.core.framework.policy import Policy
from weft.core.framework.profile import Plugin, Profile
from weft.core.framework.query import NEVER, Query
from weft.core.framework.signals import Floats
from weft.core.ledger.table import Bools, Ints

__all__ = [
    "NEVER",
    "Bools",
    "Codes",
    "Demand",
    "Floats",
    "Ints",
    "Need",
    "Plugin",
    "Policy",
    "Profile",
    "Query",
]
