"""Receives the errors (XIDs) that GPUs report, on a thread of its own, as NVML's wait blocks.

The thread runs from a reader's first reading to `close`. If the driver or a GPU does not support
such events, none are received, and only a GPU that no longer answers counts as broken.
"""

import ctypes
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from weft.node.devices.nvml_library import ask

WAIT_MS = 1_000
_NO_INSTANCE = 0xFFFF_FFFF


class XidEvent(NamedTuple):
    """A GPU's error; of one MIG instance if `gpu_instance` is not None."""

    card: int
    xid: int
    gpu_instance: int | None = None


class XidWatch:
    """Collects errors until they are taken. `cards` are (index, handle) of every GPU."""

    def __init__(self, nvml: Any, cards: Sequence[tuple[int, Any]], wait_ms: int = WAIT_MS) -> None:
        self._nvml, self._wait_ms = nvml, wait_ms
        self._cards = {_identity(handle): index for index, handle in cards}
        self._heard: list[XidEvent] = []
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._set = ask(nvml, nvml.nvmlEventSetCreate)
        registered = [self._register(handle) for _, handle in cards] if self._set else []
        self.cards, self.listening = len(cards), any(registered)
        self._thread = threading.Thread(target=self._listen, name="weft-xids", daemon=True)
        if self.listening:
            self._thread.start()

    def take(self) -> list[XidEvent]:
        """Return the events since the last call, in order."""
        with self._lock:
            heard, self._heard = self._heard, []
        return heard

    def close(self) -> None:
        """Stop listening."""
        self._ending.set()
        if self.listening:
            self._thread.join(2 * self._wait_ms / 1_000 + 1)
        if self._set is not None and not self._thread.is_alive():
            ask(self._nvml, lambda: self._nvml.nvmlEventSetFree(self._set))

    def _register(self, handle: Any) -> bool:
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError
        if not (ask(nvml, lambda: nvml.nvmlDeviceGetSupportedEventTypes(handle)) or 0) & wanted:
            return False
        try:
            nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except nvml.NVMLError:
            return False
        return True

    def _listen(self) -> None:
        nvml = self._nvml
        while not self._ending.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, self._wait_ms)
            except nvml.NVMLError as error:
                # No event in this time; or a GPU is lost, which reading it shows too. Wait before
                # the next call, which may fail at once again.
                if getattr(error, "value", None) != nvml.NVML_ERROR_TIMEOUT:
                    self._ending.wait(self._wait_ms / 1_000)
                continue
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._note(event)

    def _note(self, event: Any) -> None:
        card = self._cards.get(_identity(event.device))
        if card is None:
            return
        instance = getattr(event, "gpuInstanceId", _NO_INSTANCE)
        with self._lock:
            self._heard.append(
                XidEvent(card, int(event.eventData), None if instance == _NO_INSTANCE else instance)
            )


def _identity(handle: Any) -> Any:
    """Return the pointer in a handle, which is equal for all handles of a device."""
    with suppress(ctypes.ArgumentError, TypeError):
        return ctypes.cast(handle, ctypes.c_void_p).value
    return handle
