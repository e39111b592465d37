"""What recorded names mean."""

from __future__ import annotations

import pytest

from hostgap.trace.model import CopyKind, Memory, Role
from hostgap.trace.vocabulary import (
    BLOCKING_COPIES,
    GPU_CATEGORIES,
    OTHER_CATEGORIES,
    api_name,
    api_role,
    copy_of,
    is_collective,
)

LAUNCHES = "cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel cuLaunchKernel "
LAUNCHES += "cuLaunchKernelEx hipLaunchKernel hipExtLaunchKernel hipModuleLaunchKernel "
LAUNCHES += "hipExtModuleLaunchKernel"
ROLES = {
    Role.LAUNCH: LAUNCHES,
    Role.GRAPH_LAUNCH: "cudaGraphLaunch cuGraphLaunch hipGraphLaunch",
    Role.SYNC: "cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize "
    "cuCtxSynchronize cuStreamSynchronize hipDeviceSynchronize hipStreamSynchronize",
    Role.COPY: "cudaMemcpy cudaMemcpyAsync cudaMemsetAsync cuMemcpyDtoHAsync_v2 cuMemsetD32Async "
    "hipMemcpyWithStream hipMemcpyAsync",
    Role.EVENT: "cudaEventRecord cudaEventRecordWithFlags cudaStreamWaitEvent hipEventRecord",
    Role.ALLOC: "cudaMalloc cudaMallocAsync cudaMallocManaged cuMemAlloc_v2 cuMemCreate hipMalloc",
    Role.FREE: "cudaFree cudaFreeAsync cuMemFree hipFree cuMemUnmap",
    Role.HOST_ALLOC: "cudaHostAlloc cudaFreeHost cudaMallocHost hipHostMalloc cuMemHostAlloc",
    Role.CAPTURE: "cudaStreamBeginCapture cudaStreamEndCapture",
    Role.INSTANTIATE: "cudaGraphInstantiate cudaGraphInstantiateWithFlags cudaGraphUpload",
    Role.MODULE_LOAD: "cuModuleLoadData cuLibraryLoadData cuModuleGetFunction",
    Role.QUERY: "cudaEventQuery cudaStreamQuery",
    Role.OTHER: "cudaStreamIsCapturing cudaGetDeviceCount cudaPeekAtLastError my_cudaLaunchKernel "
    "cudaLaunchKernelX void_kernel",
}


@pytest.mark.parametrize(("role", "names"), ROLES.items())
def test_roles(role: Role, names: str) -> None:
    assert {name: api_role(name) for name in names.split()} == dict.fromkeys(names.split(), role)


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2"),
        ("cudaMemcpyAsync_ptsz", "cudaMemcpyAsync"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cuLaunchKernel_ptsz", "cuLaunchKernel"),
    ],
)
def test_suffixes(recorded: str, name: str) -> None:
    assert api_name(recorded) == name


PAGEABLE, PINNED, DEVICE, UNKNOWN = Memory.PAGEABLE, Memory.PINNED, Memory.DEVICE, Memory.UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", (CopyKind.H2D, PAGEABLE, DEVICE)),
        ("Memcpy DtoH (Device -> Pinned)", (CopyKind.D2H, DEVICE, PINNED)),
        ("Memcpy DtoD (Device -> Device)", (CopyKind.D2D, DEVICE, DEVICE)),
        ("Memcpy HtoH (Pinned -> Pageable)", (CopyKind.H2H, PINNED, PAGEABLE)),
        ("Memcpy PtoP (Device -> Device)", (CopyKind.P2P, DEVICE, DEVICE)),
        ("Memcpy HtoA (Pageable -> Array)", (CopyKind.H2D, PAGEABLE, Memory.ARRAY)),
        ("Memcpy DtoH (Device -> Host)", (CopyKind.D2H, DEVICE, UNKNOWN)),
        ("Memcpy HtoD (Managed -> Device)", (CopyKind.H2D, Memory.MANAGED, DEVICE)),
        ("CopyHostToDevice", (CopyKind.H2D, UNKNOWN, DEVICE)),
        ("CopyDeviceToDevice", (CopyKind.D2D, DEVICE, DEVICE)),
        ("device_to_host", (CopyKind.D2H, DEVICE, UNKNOWN)),
        ("Memcpy", (CopyKind.NONE, UNKNOWN, UNKNOWN)),
        ("", (CopyKind.NONE, UNKNOWN, UNKNOWN)),
    ],
)
def test_copies(text: str, expected: tuple[CopyKind, Memory, Memory]) -> None:
    assert copy_of(text) == expected


def test_blocking_copies() -> None:
    blocking = "cudaMemcpy hipMemcpyWithStream hipMemcpy cuMemcpyDtoH_v2 cudaMemcpyToSymbol"
    assert all(BLOCKING_COPIES.match(name) for name in blocking.split())
    assert not any(BLOCKING_COPIES.match(name) for name in ("cudaMemcpyAsync", "cudaMemset"))


def test_collectives() -> None:
    waiting = ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "rcclGenericKernel", "all_gather_kernel"]
    waiting += ["void sglang::cross_device_reduce_1stage<bf16>", "ncclKernel_Broadcast"]
    work = ["void at::native::reduce_kernel<512>", "ampere_fp16_s16816gemm", "gather_kernel"]
    assert all(map(is_collective, waiting))
    assert not any(map(is_collective, work))


def test_annotations_and_syncs_on_the_gpu_row_are_no_work() -> None:
    for category in ("gpu_user_annotation", "cuda_sync"):
        assert category in OTHER_CATEGORIES
        assert category not in GPU_CATEGORIES
