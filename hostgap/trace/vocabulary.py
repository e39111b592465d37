"""The field's names: trace categories, API calls, copies.

Everything that turns a recorded name into a meaning stands here, once, for every reader.
"""

from __future__ import annotations

import re

from hostgap.trace.model import CopyKind, GpuKind, HostKind, Memory, Role

# Kineto categories, old spellings (torch 1.8 to 1.11) included.
GPU_CATEGORIES: dict[str, GpuKind] = {
    "kernel": GpuKind.KERNEL,
    "Kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.COPY,
    "Memcpy": GpuKind.COPY,
    "gpu_memset": GpuKind.MEMSET,
    "Memset": GpuKind.MEMSET,
}
API_CATEGORIES = frozenset(
    {"cuda_runtime", "Runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "hip_runtime"}
    | {"privateuse1_runtime", "privateuse1_driver"}
)
HOST_CATEGORIES: dict[str, HostKind] = {
    "cpu_op": HostKind.OP,
    "Operator": HostKind.OP,
    "user_annotation": HostKind.ANNOTATION,
    "overhead": HostKind.OVERHEAD,
}
FRAME_CATEGORIES = frozenset({"python_function"})
# Annotations that torch 1.8 to 1.11 recorded as operators.
ANNOTATION_NAMES = re.compile(
    r"^(?:ProfilerStep#\d+$|Optimizer\.(?:step|zero_grad)#|enumerate\(DataLoader\)#)"
)
# Known, and not read: annotations repeated on the GPU's row, syncs that repeat an API call, the
# profiler's own span, memory instants.
OTHER_CATEGORIES = frozenset(
    {"gpu_user_annotation", "cuda_sync", "Trace", "cpu_instant_event", "external_correlation"}
    | {"mtia_runtime", "mtia_ccp_events", "mtia_insight", "mtia_counters"}
    | {"collective_comm", "cuda_profiler_range", "ac2g", "fwdbwd", "async", "async_gpu"}
)
# Packages right below torch: a path that holds torch and then one of them is torch's own code.
TORCH_PACKAGES = frozenset(
    [
        "_C",
        "_decomp",
        "_dispatch",
        "_dynamo",
        "_export",
        "_functorch",
        "_higher_order_ops",
        "_inductor",
        "_library",
        "_logging",
        "_numpy",
        "_ops",
        "_prims",
        "_prims_common",
        "_refs",
        "_subclasses",
        "ao",
        "autograd",
        "cuda",
        "distributed",
        "export",
        "fx",
        "jit",
        "nn",
        "optim",
        "profiler",
        "sparse",
        "testing",
        "utils",
    ]
)
# Device events of backends whose rows hostgap cannot call work or waiting.
UNREAD_BACKENDS: dict[str, str] = {
    "mtia_ccp_events": "MTIA",
    "mtia_runtime": "MTIA",
    "hpu_op": "HPU",
    "ipu_kernel": "IPU",
}

_VERSION = re.compile(r"_v\d{4,5}$")
_PTSZ = re.compile(r"_(?:pt(?:sz|ds)|spt)$")

_LAUNCH = re.compile(
    r"(?:cuda|hip|hipExt)Launch(?:Kernel(?:ExC|Ex)?|CooperativeKernel(?:MultiDevice)?|MultiKernel)?$"
    r"|cudaLaunch(?:Device)?(?:V2)?$"
    r"|hipDrvLaunch(?:Kernel(?:Ex)?|CooperativeKernel)$|hipExtLaunchMultiKernelMultiDevice$"
    r"|cuLaunch(?:Kernel(?:Ex)?|CooperativeKernel(?:MultiDevice)?|Grid(?:Async)?)?$"
    r"|hip(?:Ext)?ModuleLaunch(?:Kernel|CooperativeKernel)$"
    r"|urEnqueueKernelLaunch\w*$|zeCommandListAppendLaunchKernel$"
)
_GRAPH_LAUNCH = re.compile(r"(?:cuda|cu|hip)GraphLaunch$")
_SYNC = re.compile(
    r"(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize$|cuCtxSynchronize\w*$"
    r"|urQueueFinish$|urEventWait$|ze(?:CommandQueue|Fence|EventHost|CommandListHost)Synchronize$"
)
_COPY = re.compile(r"(?:cuda|cu|hip)(?:Memcpy|Memset)\w*$|urEnqueueUSM(?:Memcpy|Fill)\w*$")
_FREE = re.compile(r"(?:cuda|cu|hip)(?:Mem)?Free(?:Async|Array|Mipmapped\w*)?$|(?:cu|hip)MemUnmap$")
_HOST_ALLOC = re.compile(
    r"(?:cuda|hip)(?:HostAlloc|MallocHost|HostMalloc|FreeHost|HostFree|HostRegister|HostUnregister)$"
    r"|cuMem(?:HostAlloc|AllocHost|FreeHost|HostRegister|HostUnregister)$"
)
_ALLOC = re.compile(
    r"(?:cuda|hip)(?:Ext)?Malloc\w*$|cuMemAlloc\w*$|(?:cu|hip)Mem(?:Create|Map|SetAccess|AddressReserve)$"
    r"|cuMemAddress\w*$|cuMemRelease$"
)
_CAPTURE = re.compile(r"(?:cuda|cu|hip)(?:StreamBeginCapture\w*|StreamEndCapture)$")
_INSTANTIATE = re.compile(r"(?:cuda|cu|hip)Graph(?:Instantiate\w*|Upload|Exec\w*Update\w*)$")
_MODULE = re.compile(
    r"(?:cu|hip)(?:Module|Library)(?:Load\w*|GetFunction|GetKernel)$"
    r"|cudaLibraryLoad\w*$|cuLink\w+$"
)
_QUERY = re.compile(r"(?:cuda|cu|hip)(?:Stream|Event)Query$")
_EVENT = re.compile(r"(?:cuda|cu|hip)(?:Event\w+|StreamWaitEvent)$")

_ROLES: tuple[tuple[re.Pattern[str], Role], ...] = (
    (_LAUNCH, Role.LAUNCH),
    (_GRAPH_LAUNCH, Role.GRAPH_LAUNCH),
    (_SYNC, Role.SYNC),
    (_COPY, Role.COPY),
    (_HOST_ALLOC, Role.HOST_ALLOC),
    (_FREE, Role.FREE),
    (_ALLOC, Role.ALLOC),
    (_CAPTURE, Role.CAPTURE),
    (_INSTANTIATE, Role.INSTANTIATE),
    (_MODULE, Role.MODULE_LOAD),
    (_QUERY, Role.QUERY),
    (_EVENT, Role.EVENT),
)

# Copies that return only when the copy is done, whatever the memory.
BLOCKING_COPIES = re.compile(
    r"(?:cudaMemcpy|cudaMemcpy2D|cudaMemcpy3D|cudaMemcpyToSymbol|cudaMemcpyFromSymbol"
    r"|hipMemcpy|hipMemcpyWithStream|hipMemcpyDtoH|hipMemcpyHtoD"
    r"|cuMemcpy|cuMemcpyDtoH(?:_v2)?|cuMemcpyHtoD(?:_v2)?|cuMemcpyAtoH(?:_v2)?|cuMemcpyHtoA(?:_v2)?)$"
)


def api_name(name: str) -> str:
    """An API call's name without the suffixes tools add (`_v7000`, `_ptsz`); `cu*_v2` stays."""
    return _PTSZ.sub("", _VERSION.sub("", name))


def api_role(name: str) -> Role:
    """What the call `name` (as `api_name` gives it) does."""
    for pattern, role in _ROLES:
        if pattern.match(name):
            return role
    return Role.OTHER


_ENDS = {"H": "host", "D": "device", "P": "device", "A": "array"}
_MEMORY = {
    "pageable": Memory.PAGEABLE,
    "pinned": Memory.PINNED,
    "device": Memory.DEVICE,
    "array": Memory.ARRAY,
    "managed": Memory.MANAGED,
    "unified": Memory.MANAGED,
}
_DIRECTION = re.compile(r"\b([HDPA])to([HDPA])\b")
_WORDS = re.compile(r"(host|device)_?to_?(host|device)", re.IGNORECASE)
_ARROW = re.compile(r"\((\w+)\s*->\s*(\w+)\)")
_KINDS = {
    ("host", "device"): CopyKind.H2D,
    ("device", "host"): CopyKind.D2H,
    ("device", "device"): CopyKind.D2D,
    ("host", "host"): CopyKind.H2H,
}


def copy_of(text: str) -> tuple[CopyKind, Memory, Memory]:
    """Direction and memories of a copy, from its name: `Memcpy HtoD (Pageable -> Device)`.

    AMD traces name no memory (`Host`), and some rows hold only `CopyHostToDevice`.
    """
    kind = CopyKind.NONE
    ends = None
    if match := _DIRECTION.search(text):
        if match[1] == match[2] == "P":
            kind = CopyKind.P2P
        ends = (_ENDS[match[1]], _ENDS[match[2]])
    elif match := _WORDS.search(text):
        ends = (match[1].lower(), match[2].lower())
    if ends is not None and kind is CopyKind.NONE:
        kind = _KINDS.get(tuple("device" if e == "array" else e for e in ends), CopyKind.NONE)  # type: ignore[arg-type]
    memories = [Memory.UNKNOWN, Memory.UNKNOWN]
    if match := _ARROW.search(text):
        memories = [_MEMORY.get(word.lower(), Memory.UNKNOWN) for word in match.groups()]
    elif ends is not None:
        memories = [Memory.DEVICE if end == "device" else Memory.UNKNOWN for end in ends]
    return kind, memories[0], memories[1]


_COLLECTIVE = re.compile(
    r"^nccl(?!.*_init)|ncclDevKernel|ncclKernel|rccl|cross_device_reduce|multimem|"
    r"deep_ep|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|allreduce",
    re.IGNORECASE,
)


def is_collective(name: str) -> bool:
    """Whether a kernel waits for other ranks: its time is not work of this GPU."""
    return _COLLECTIVE.search(name) is not None
