"""Does a placement fit the accounts as they are? Reads the table and changes nothing."""

from typing import NamedTuple

from weft.core.ledger.table import LedgerTable
from weft.model import Placement, Share
from weft.model.constraints import have_conflicts


class MemoryAmount(NamedTuple):
    """Form in which a pod asks for its share of a GPU's memory.

    Who may `harvest` gets also what residents leave idle. `expected_mib` is what pods like it
    needed, 0 where that is not known: so much must be measured free, and all that it asks must be
    within the declared limit.
    """

    harvest: bool = False
    expected_mib: int = 0


STRICTLY = MemoryAmount()


def fits(table: LedgerTable, placement: Placement, asks: MemoryAmount = STRICTLY) -> bool:
    """True if the placement keeps every invariant right now. Negative amounts never do."""
    row = table.row_of.get(placement.node)
    if row is None or not table.schedulable[row]:
        return False
    if not _has(table.cpu_free[row], placement.cpu_milli):
        return False
    if not _has(table.memory_free[row], placement.memory_mib):
        return False
    beside = not placement.extended or _extended_fits(table, row, placement)
    if not beside or (placement.ports and _ports_taken(table, row, placement)):
        return False
    if len(placement.shares) == 1:
        return _share_fits(table, row, placement.shares[0], asks)
    return _shares_fit(table, row, placement.shares)


def _has(free: int, amount: int) -> bool:
    """True if `asked` may be taken of `free`; nothing always may, also where facts overbook."""
    return amount == 0 or 0 < amount <= free


def _ports_taken(table: LedgerTable, row: int, placement: Placement) -> bool:
    return have_conflicts(placement.ports, table.ports.get(row, ()))


def _extended_fits(table: LedgerTable, row: int, placement: Placement) -> bool:
    free: dict[str, int] = {}
    for name, amount in placement.extended:
        if name not in free:
            column = table.extended.get(name)
            free[name] = 0 if column is None else int(column[row])
        free[name] -= amount
        if amount < 0 or (amount and free[name] < 0):
            return False
    return True


def _share_fits(table: LedgerTable, row: int, share: Share, asks: MemoryAmount = STRICTLY) -> bool:
    device = table.device_row(row, share.gpu)
    return (
        device >= 0
        and bool(table.device_usable[device])
        and _memory_fits(table, device, share.memory_mib, asks)
        and bool(0 <= share.milli <= table.device_milli_free[device])
    )


def _memory_fits(table: LedgerTable, device: int, asked_mib: int, asks: MemoryAmount) -> bool:
    free = table.device_memory_harvest if asks.harvest else table.device_memory_free
    if 0 <= asked_mib <= free[device]:
        return True
    if not asks.harvest or not asks.expected_mib:
        return False
    return bool(
        0 <= asked_mib <= table.device_unpromised[device]
        and asks.expected_mib <= table.device_unneeded[device]
    )


def _shares_fit(table: LedgerTable, row: int, shares: tuple[Share, ...]) -> bool:
    """Several shares: their sums must fit each GPU, and no card with its own MIG instance."""
    if any(share.memory_mib < 0 or share.milli < 0 for share in shares):
        return False
    together: dict[int, Share] = {}
    for share in shares:
        sofar = together.get(share.gpu)
        together[share.gpu] = (
            share
            if sofar is None
            else Share(
                gpu_request=share.gpu_request,
                gpu=share.gpu,
                memory_mib=sofar.memory_mib + share.memory_mib,
                milli=sofar.milli + share.milli,
            )
        )
    if not all(_share_fits(table, row, share) for share in together.values()):
        return False
    if table.has_parents:
        devices = {table.device_row(row, gpu) for gpu in together}
        return all(table.parents[device] not in devices for device in devices)
    return True
