"""What limits the step, in one word: the class of causes that would save the most."""

from __future__ import annotations

from hostgap.analysis.causes import Cause
from hostgap.analysis.edit import Edit
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.model import Verdict
from hostgap.diagnosis.ranks import rank_wait_ns

GPU_BOUND = 0.05  # share of the window that the GPU waits for its host, below which it does not
RANK_WAIT = 0.05  # share of the window in collectives beyond their own cost
CLEAR = 0.4  # share of the host's idle time that the largest class must have

# The GPU's own gaps: its orders were in hand.
_GPU = (Cause.GRAPH_INTERNAL, Cause.QUEUE_GAP, Cause.DEPENDENCY)
_CLASSES: dict[Verdict, tuple[Cause, ...]] = {
    "launch-bound": (
        Cause.LAUNCH_CALL,
        Cause.LAUNCH_LATENCY,
        Cause.API_CALL,
        Cause.DISPATCH,
        Cause.CAPTURE,
    ),
    "host-bound": (
        Cause.PYTHON,
        Cause.GC,
        Cause.GIL,
        Cause.PREEMPTED,
        Cause.UNTRACED,
        Cause.COMPILE,
        Cause.ALLOC,
        Cause.HOST_ALLOC,
        Cause.FREE,
    ),
    "sync-bound": (Cause.SYNC,),
    "transfer-bound": (Cause.COPY_CALL,),
    "input-bound": (Cause.INPUT_WAIT, Cause.REMOTE_WAIT),
}


def give_verdict(context: Context) -> Verdict:
    """What limits the step on the context's device."""
    window = context.window_ns
    if window <= 0:
        return "unmeasurable"
    if rank_wait_ns(context) > RANK_WAIT * window:
        return "rank-wait"
    host_idle = context.idle() - context.idle(*_GPU)
    if host_idle < GPU_BOUND * window:
        return "gpu-bound"
    fitted, gpu_ns = context.calibrated, 0.0
    if fitted is not None:
        # much of that may be the profiler's doing: what the step is without it decides
        step, gpu_ns = fitted.length(Edit()) / len(fitted.steps), fitted.fits[0].gpu_ns
        if step - gpu_ns < GPU_BOUND * step:
            return "gpu-bound"
    totals = {name: context.idle(*causes) for name, causes in _CLASSES.items()}
    if context.replay is not None and len(context.waits.call):
        # without its waits the host would have been ahead: their cost is not what they take
        waits = context.with_copies(context.waits.call)
        if fitted is not None:
            # the share of the unprofiled step's idle time, as that of the trace's
            scale = host_idle / max(1.0, fitted.length(Edit()) - len(fitted.steps) * gpu_ns)
            saved = fitted.saving(Edit(unblock=waits)) * scale
        else:
            scale = window / max(1, context.replay.high - context.replay.low)
            saved = context.replay.saving(Edit(unblock=waits)) * scale
        totals["sync-bound"] = max(totals["sync-bound"], int(saved))
    best = max(totals, key=lambda name: totals[name])
    return best if totals[best] >= CLEAR * host_idle else "mixed"
