"""The closed list of causes of idle time, and how names map to them."""

from __future__ import annotations

import enum
import re
import sys

from hostgap.trace.model import Role
from hostgap.trace.vocabulary import TORCH_PACKAGES


class Cause(enum.IntEnum):
    """Why the GPU had nothing to do. Every idle nanosecond has exactly one; there is no "other"."""

    GRAPH_INTERNAL = 0  # between nodes of one graph replay
    QUEUE_GAP = 1  # between ops whose orders the GPU had in hand
    LAUNCH_LATENCY = 2  # from the launch call's return to the op's start
    DEPENDENCY = 3  # a stream's own gap: an event, another stream, a collective
    SYNC = 4
    COPY_CALL = 5
    ALLOC = 6
    HOST_ALLOC = 7
    FREE = 8
    COMPILE = 9
    CAPTURE = 10
    LAUNCH_CALL = 11
    API_CALL = 12
    DISPATCH = 13
    GC = 14
    PYTHON = 15
    INPUT_WAIT = 16
    REMOTE_WAIT = 17
    NO_WORK = 18
    PREEMPTED = 19
    GIL = 20
    PROFILER = 21
    UNTRACED = 22
    UNATTRIBUTABLE = 23

    @property
    def label(self) -> str:
        """The name used in every output."""
        return self.name.lower()


# One line each; 36 characters fit beside the bars of an 80-column terminal.
MEANING: dict[Cause, str] = {
    Cause.GRAPH_INTERNAL: "between nodes of one graph replay",
    Cause.QUEUE_GAP: "between ops already in the queue",
    Cause.LAUNCH_LATENCY: "from launch return to the op's start",
    Cause.DEPENDENCY: "the device works on other streams",
    Cause.SYNC: "host waits for the GPU, queue empty",
    Cause.COPY_CALL: "inside a copy or memset call",
    Cause.ALLOC: "inside a device allocation call",
    Cause.HOST_ALLOC: "inside a pinned-memory call",
    Cause.FREE: "inside a free, which may drain",
    Cause.COMPILE: "compiling or loading kernels",
    Cause.CAPTURE: "capturing or building a CUDA graph",
    Cause.LAUNCH_CALL: "inside a kernel or graph launch call",
    Cause.API_CALL: "inside another CUDA call",
    Cause.DISPATCH: "in framework ops, outside CUDA calls",
    Cause.GC: "Python's garbage collector",
    Cause.PYTHON: "Python between framework ops",
    Cause.INPUT_WAIT: "waiting for input, a lock or a queue",
    Cause.REMOTE_WAIT: "waiting for another process",
    Cause.NO_WORK: "no request was running",
    Cause.PREEMPTED: "launching thread off the CPU",
    Cause.GIL: "waiting for the interpreter lock",
    Cause.PROFILER: "the profiler's own work",
    Cause.UNTRACED: "the trace shows nothing of it",
    Cause.UNATTRIBUTABLE: "unknown who launched the next op",
}

# What each usually means, and what to do about it.
ADVICE: dict[Cause, str] = {
    Cause.GRAPH_INTERNAL: "Fewer, larger kernels in the graph: fuse them.",
    Cause.QUEUE_GAP: "Normal up to a few us a kernel; long ones mean work the trace does not show.",
    Cause.LAUNCH_LATENCY: "The GPU had run dry: launch further ahead, or launch less.",
    Cause.DEPENDENCY: "An event, another stream or a collective is waited for.",
    Cause.SYNC: "A value is read back, or a synchronize is not needed.",
    Cause.COPY_CALL: "A pageable or blocking copy: pin the memory, or copy beside the step.",
    Cause.ALLOC: "Allocate once, before the loop.",
    Cause.HOST_ALLOC: "Pin memory once, before the loop.",
    Cause.FREE: "A free drains the device: keep the memory.",
    Cause.COMPILE: "Warm up before the loop, and keep shapes fixed.",
    Cause.CAPTURE: "Capture at start-up.",
    Cause.LAUNCH_CALL: "Too many launches: fuse, or capture a CUDA graph. A profiler makes these "
    "calls longer.",
    Cause.API_CALL: "See which call it is, and whether each step needs it.",
    Cause.DISPATCH: "Too many ops: torch.compile, or capture a CUDA graph.",
    Cause.GC: "gc.freeze() after start-up, and fewer cycles.",
    Cause.PYTHON: "The step's own Python: do less of it, or capture a CUDA graph.",
    Cause.INPUT_WAIT: "The data loader or the scheduler is late.",
    Cause.REMOTE_WAIT: "The other process is late: see what it does.",
    Cause.NO_WORK: "Not a cost: there was no request.",
    Cause.PREEMPTED: "Another thread ran there, or this one slept: give it a core of its own.",
    Cause.GIL: "Another thread holds the interpreter: move its work to a process.",
    Cause.PROFILER: "It is not there without a profiler.",
    Cause.UNTRACED: "Record with stacks.",
    Cause.UNATTRIBUTABLE: "See what the report says of the trace itself.",
}

ROLE_CAUSE: dict[Role, Cause] = {
    Role.OTHER: Cause.API_CALL,
    Role.LAUNCH: Cause.LAUNCH_CALL,
    Role.GRAPH_LAUNCH: Cause.LAUNCH_CALL,
    Role.COPY: Cause.COPY_CALL,
    Role.SYNC: Cause.SYNC,
    Role.EVENT: Cause.API_CALL,
    Role.ALLOC: Cause.ALLOC,
    Role.FREE: Cause.FREE,
    Role.HOST_ALLOC: Cause.HOST_ALLOC,
    Role.CAPTURE: Cause.CAPTURE,
    Role.INSTANTIATE: Cause.CAPTURE,
    Role.MODULE_LOAD: Cause.COMPILE,
    Role.QUERY: Cause.API_CALL,
}

_WAIT = re.compile(
    r"<built-in (?:method|function) (?:acquire|sleep|select|poll|wait|accept|recv\w*|read\w*|"
    r"lock_acquire|epoll_wait)\b(?! of (?:Tensor|type|torch|Event))"
    r"|<built-in method get of _queue"
    r"|(?:^|/)queue\.py\(\d+\): get$"
    r"|(?:^|/)threading\.py\(\d+\): (?:wait|join|_wait_for_tstate_lock)$"
    r"|(?:^|/)selectors\.py\(\d+\): select$|(?:^|/)subprocess\.py\(\d+\): (?:wait|communicate)$"
    r"|(?:^|/)concurrent/futures/_base\.py\(\d+\): result$"
)
_REMOTE = re.compile(
    r"\bzmq/\S*\(\d+\): (?:recv\w*|poll)$"
    r"|multiprocessing/connection\.py\(\d+\): (?:recv\w*|poll|wait)$"
    r"|shm_broadcast\.py\(\d+\): (?:acquire_read|dequeue)$"
    r"|(?:^|/)torch/distributed/\S*\(\d+\): (?:barrier|monitored_barrier)$"
)
_GC = re.compile(
    r"<built-in (?:method|function) collect\b|^(?:python )?gc\b(?!\.py)", re.IGNORECASE
)
_COMPILE = re.compile(
    r"torch/_dynamo/convert_frame\.py"
    r"|torch/_inductor/(?:codecache|async_compile|graph|scheduler)\.py"
    r"|torch/_inductor/compile_fx\.py\(\d+\): \w*compile\w*$"
    r"|torch/_inductor/runtime/triton_heuristics\.py\(\d+\): "
    r"(?:autotune|benchmark|coordesc|precompile)"
    r"|(?:^|/)triton/compiler/code_generator\.py"
    r"|(?:^|/)triton/compiler/compiler\.py\(\d+\): compile$"
    r"|triton/runtime/autotuner\.py\(\d+\): _?bench"
    r"|triton/runtime/jit\.py\(\d+\): (?:_do_)?compile$"
    r"|\(dynamo_timed\)|^CompileContext\b"
    r"|^(?:dynamo|entire_frame_compile|backend_compile|compile_attempt_\d+|bytecode_tracing)$"
)
_PROFILER = re.compile(
    r"(?:^|/)(?:torch/(?:profiler/\w+|autograd/profiler)|hostgap/profiling/events)\.py\(\d+\): "
)
_LOADER = re.compile(
    r"^enumerate\(DataLoader\)|torch/utils/data/dataloader\.py\(\d+\): (?:__next__|_next_data)$"
)
_KERNEL_LOADING = re.compile(r"Lazy Function Loading|Module Loading", re.IGNORECASE)


def host_cause(name: str, *, frame: bool) -> Cause:
    """The cause of idle time whose innermost host event is this frame or framework op."""
    if _REMOTE.search(name):
        return Cause.REMOTE_WAIT
    if _WAIT.search(name) or _LOADER.search(name):
        return Cause.INPUT_WAIT
    if _COMPILE.search(name):
        return Cause.COMPILE
    if _GC.search(name):
        return Cause.GC
    if frame and _PROFILER.search(name):
        return Cause.PROFILER
    return Cause.PYTHON if frame else Cause.DISPATCH


def overhead_cause(name: str) -> Cause:
    """The cause behind an `overhead` row: the profiler itself, or kernels being loaded."""
    return Cause.COMPILE if _KERNEL_LOADING.search(name) else Cause.PROFILER


# Causes that whatever runs inside them inherits: compiling calls into everything, and so do a
# data loader that works in the process itself, a receive from another process, the profiler.
INHERITED = (Cause.COMPILE, Cause.INPUT_WAIT, Cause.REMOTE_WAIT, Cause.PROFILER)

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d{1,9})\): (?P<function>.+)$", re.DOTALL)
# Names users give their own scripts, although the standard library has them too.
_OFTEN_USERS = {"test", "code", "profile", "trace", "main", "site", "this", "token", "types"}
_STDLIB = sys.stdlib_module_names - _OFTEN_USERS
# Frames that have no name in the source: the function around them has.
_INLINE = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}
_LIBRARY = re.compile(
    # Kineto strips what is on sys.path, so a library's path begins with its name
    r"^(?:torch|torchvision|torchaudio|triton|numpy|functorch|nvtx|tqdm|zmq|_pytest|pluggy)[/\\]"
    rf"|[/\\]torch[/\\](?:{'|'.join(sorted(TORCH_PACKAGES))})[/\\]"
    r"|(?:^|[/\\])(?:site-packages|dist-packages)[/\\]|^<|(?:^|[/\\])lib[/\\]python\d[\d.]*[/\\]"
    r"|[/\\][a-z2-7]{2}[/\\]c[a-z2-7]{40,}\.py$"  # what Inductor generates
)


def frame_parts(name: str) -> tuple[str, int, str] | None:
    """File, first line and function of a frame's name, None for built-ins and modules."""
    match = _FRAME.match(name)
    return (match["file"], int(match["line"]), match["function"]) if match else None


def is_user_frame(name: str) -> bool:
    """Whether a frame is the user's own code: not torch, not an installed or standard library."""
    parts = frame_parts(name)
    if parts is None or _LIBRARY.search(parts[0]):
        return False
    if parts[2] in _INLINE:
        return False
    first = re.split(r"[/\\]", parts[0], maxsplit=1)[0]
    return first.removesuffix(".py") not in _STDLIB
