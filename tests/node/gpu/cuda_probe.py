"""A container's program on a GPU: what it sees of it, and how much memory it gets.

    cuda_probe.py see               the GPUs that CUDA finds
    cuda_probe.py hold MIB [MIB…]   then take so much, one after the other, until SIGTERM

Calls the driver's library itself: the container has Python and no more. Each thing said is a line
of JSON: {"gpus": [{"uuid", "sms"}]} or {"error": CUDA's number}, then {"mib", "error"} for each.
"""

import ctypes
import json
import signal
import sys
import uuid
from typing import Any

_SMS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: under MPS, those that this program may use."""


class CudaError(Exception):
    """A call of the driver that failed; `number` is its CUresult."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def say(**told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def check(result: int) -> None:
    """Raise `CudaError` unless the call went well."""
    if result:
        raise CudaError(result)


def gpus(cuda: ctypes.CDLL) -> list[dict[str, Any]]:
    """UUID and number of multiprocessors of each GPU that CUDA finds."""
    check(cuda.cuInit(0))
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    found = []
    for index in range(count.value):
        name, sms = (ctypes.c_char * 16)(), ctypes.c_int()
        enter(cuda, index)  # MPS tells its limit to programs that have a context
        check(cuda.cuDeviceGetUuid_v2(name, index))
        check(cuda.cuDeviceGetAttribute(ctypes.byref(sms), _SMS, index))
        found.append({"uuid": f"GPU-{uuid.UUID(bytes=bytes(name))}", "sms": sms.value})
    return found


def enter(cuda: ctypes.CDLL, index: int) -> None:
    """Have a context on this GPU."""
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index))
    check(cuda.cuCtxSetCurrent(context))


def take(cuda: ctypes.CDLL, mib: int) -> None:
    """Allocate so much on the first GPU and write to it."""
    where = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(mib << 20)))
    check(cuda.cuMemsetD8_v2(where, ctypes.c_ubyte(1), ctypes.c_size_t(mib << 20)))
    check(cuda.cuCtxSynchronize())


def main(word: str, *amounts: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cuda = ctypes.CDLL("libcuda.so.1")
    try:
        say(gpus=gpus(cuda))
        enter(cuda, 0)
    except CudaError as error:
        say(error=error.number)
    else:
        for mib in map(int, amounts):
            try:
                take(cuda, mib)
            except CudaError as error:
                say(mib=mib, error=error.number)
            else:
                say(mib=mib, error=0)
    while word == "hold":
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
