"""What kind of work a kernel does, by its name."""

from __future__ import annotations

import enum
import functools
import re


class KernelClass(enum.Enum):
    """Kinds of kernels that rules tell apart."""

    GEMM = "gemm"
    ATTENTION = "attention"
    SOFTMAX = "softmax"
    REDUCTION = "reduction"  # norms too
    POINTWISE = "pointwise"
    OTHER = "other"


# The first that matches: Inductor's kernels name every op that they fuse, a fused attention kernel
# also holds "gemm", a softmax also "reduce".
_CLASSES = (
    (KernelClass.REDUCTION, re.compile(r"^triton_(?:red|per)_")),
    (KernelClass.POINTWISE, re.compile(r"^triton_poi_")),
    (KernelClass.ATTENTION, re.compile(r"flash|fmha|attention|mha_fwd|paged_?attn|sdpa", re.I)),
    (
        KernelClass.GEMM,
        re.compile(
            r"gemm|gemv|nvjet|cutlass|cublas|splitk|xmma|_mma_|wgmma|ampere_|hopper_|turing_fp16|"
            r"volta_s|sm\d+_\w*tensorop|implicit_convolve|cudnn_\w*conv|triton_\w*_mm",
            re.I,
        ),
    ),
    (KernelClass.SOFTMAX, re.compile(r"softmax", re.I)),
    (
        KernelClass.REDUCTION,
        re.compile(
            r"reduce_?kernel|layer_?norm|rms_?norm|group_?norm|argmax|"
            r"DeviceReduce|DeviceScan|cub::",
            re.I,
        ),
    ),
    (
        KernelClass.POINTWISE,
        re.compile(
            r"elementwise|CatArray|pointwise|gpu_kernel|fill|indexSelect|"
            r"index_kernel|arange|silu|gelu|rotary|embedding|vectorized_gather|memcpy32",
            re.I,
        ),
    ),
)


@functools.lru_cache(maxsize=4096)
def kernel_class(name: str) -> KernelClass:
    """The kind of a kernel, by its (demangled or mangled) name."""
    for kind, pattern in _CLASSES:
        if pattern.search(name):
            return kind
    return KernelClass.OTHER
