"""What a policy sees and what it may answer: the extension points and the question they answer.

In: the policy contract, feasibility, the search over several devices, profiles, the registry.
Out: any strategy (`policies/`), when things are decided (`engine/`), and who holds what
(`ledger/`).
"""

from weft.framework.demand import Demand, Need
from weft.framework.policy import Policy
from weft.framework.profile import Plugin, Profile
from weft.framework.query import NEVER, Query

__all__ = ["NEVER", "Demand", "Need", "Plugin", "Policy", "Profile", "Query"]
