"""Which ends of containers were for want of GPU memory, as a pod's status tells."""

import json
from typing import Any

import msgspec
import pytest

from weft.kube.oom_ends import OomEnd, out_of_memory
from weft.kube.pods import Pod

CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB"
Json = dict[str, Any]


def ended(message: str = CUDA, code: int = 1, reason: str = "Error", **more: object) -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, **more}}


def container(name: str = "main", restarts: int = 0, **states: Json) -> Json:
    return {"name": name, "restartCount": restarts, **states}


def pod(*containers: Json, init: tuple[Json, ...] = (), mark: str = "") -> Pod:
    marks = {"weft.dev/out-of-memory": mark} if mark else {}
    status = {"containerStatuses": list(containers), "initContainerStatuses": list(init)}
    meta = {"name": "p", "uid": "u", "annotations": marks}
    return msgspec.convert({"metadata": meta, "status": status}, Pod)


@pytest.mark.parametrize(
    "words",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory",
        "RuntimeError: CUDA error: out of memory",
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] CUDA_ERROR_OUT_OF_MEMORY",
        "std::bad_alloc: CUDA error at: pool.hpp: cudaErrorMemoryAllocation out of memory",
        "ggml: cudaMalloc failed: out of memory",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes on device GPU:0",
        "OOM: failed to allocate 2.20GiB (2362232012 bytes) by GPU_0_bfc",
        "line 1\nand then\ncuda out of memory\nbye",
    ],
)
def test_last_words_that_tell(words: str) -> None:
    assert out_of_memory(pod(container(state=ended(words)))) == [OomEnd("u/main/0")]


@pytest.mark.parametrize(
    "state",
    [
        ended("RuntimeError: shape mismatch"),
        ended("MemoryError: out of memory"),
        ended("RESOURCE_EXHAUSTED: too many open files\nusing GPU 0"),
        ended("CUDA out of memory; trying a smaller batch", code=0, reason="Completed"),
        ended(code=137, reason="OOMKilled"),  # the node's memory
        ended(code=1, reason="OOMKilled"),
        ended(code=137),
        ended(code=143),
        ended(""),
        {"running": {}},
        {"waiting": {"reason": "CrashLoopBackOff", "message": CUDA}},
    ],
)
def test_ends_that_are_none(state: Json) -> None:
    assert out_of_memory(pod(container(state=state))) == []


def test_an_end_has_one_name_before_and_after_the_restart() -> None:
    first = out_of_memory(pod(container(restarts=0, state=ended())))
    then = out_of_memory(pod(container(restarts=1, lastState=ended(), state={"running": {}})))
    assert first == then == [OomEnd("u/main/0")]
    again = out_of_memory(pod(container(restarts=1, lastState=ended(), state=ended())))
    assert again == [OomEnd("u/main/0"), OomEnd("u/main/1")]


def test_the_containers_own_id_is_the_better_name() -> None:
    made = pod(container(restarts=3, state=ended(containerID="containerd://ab")))
    assert out_of_memory(made) == [OomEnd("u/containerd://ab")]


def test_every_container_is_looked_at() -> None:
    made = pod(container("a"), container("b", state=ended()), init=(container("i", state=ended()),))
    assert [end.name for end in out_of_memory(made)] == ["u/i/0", "u/b/0"]


def test_an_agents_mark_takes_the_place_of_last_words() -> None:
    mark = json.dumps({"end": "7", "peak_mib": 9_000, "by": "somebody later"})
    assert out_of_memory(pod(container(state=ended()), mark=mark)) == [OomEnd("u/7", 9_000)]


@pytest.mark.parametrize("mark", ["yes", '{"end": 7}', '{"end": ""}', '{"end":"a","peak_mib":-1}'])
def test_a_mark_that_makes_no_sense_is_none(mark: str) -> None:
    assert out_of_memory(pod(container(state=ended()), mark=mark)) == [OomEnd("u/main/0")]


def test_a_pod_without_a_status_has_no_ends() -> None:
    assert out_of_memory(Pod()) == []


@pytest.mark.parametrize(
    "mark",
    [
        '{"end": "a", "more": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"end": "a", "peak_mib": 4611686018427387904}',
        '{"end": "a", "peak_mib": 1000000000000000000000000000000}',
    ],
)
def test_a_mark_that_no_agent_writes_is_none(mark: str) -> None:
    assert out_of_memory(pod(mark=mark)) == []
    assert [end.peak_mib for end in out_of_memory(pod(container(state=ended()), mark=mark))] == [0]


def test_a_mark_whose_end_is_no_name_is_not_looked_at() -> None:
    """The mark is kept, with others', where only so much fits."""
    last = container(state=ended())
    assert out_of_memory(pod(last, mark=json.dumps({"end": "e" * 253}))) == [
        OomEnd(f"u/{'e' * 253}")
    ]
    assert out_of_memory(pod(last, mark=json.dumps({"end": "e" * 254}))) == [OomEnd("u/main/0")]
