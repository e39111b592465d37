"""HG107 stream-or-event-synchronize: the user's code waits for a stream or an event.

## What it sees
cudaStreamSynchronize or cudaEventSynchronize that no framework op makes and no copy stands right
before: `torch.cuda.current_stream().synchronize()`, `event.synchronize()`, and the same in a
library. Schedulers that overlap steps wait for the event of a copy by design: if it was recorded
a step earlier, the wait is short, nothing is lost, and the finding is info.

## Why it costs
The host launches nothing while it waits. Where it waits for the last thing that it launched, the
GPU has nothing to do afterwards.

## Example
    with torch.cuda.stream(side):
        y = model(x)
    side.synchronize()                          # the host waits
    z = y + 1

## Use instead
    with torch.cuda.stream(side):
        y = model(x)
    torch.cuda.current_stream().wait_stream(side)       # the GPU waits
    z = y + 1

`stream.wait_event(event)` for a single point; `event.query()` where the host has other work to
do; and for what the host really reads, wait for the event of the step before.

## Options
None.

## Sources
PyTorch notes "CUDA semantics"; SGLang's and vLLM's overlap schedulers, which wait on the copy
events of the step before; probe rows stream_sync, event_sync on an H200 with torch 2.11."""

from __future__ import annotations

from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait
from hostgap.trace.model import CopyKind


class StreamOrEventSynchronize(WaitRule):
    """The user's code waits for a stream or an event."""

    code = "HG107"
    name = "stream-or-event-synchronize"
    title = "The host waits for a stream or an event"
    advice = "Let the GPU wait (wait_stream, wait_event), or wait for the step before."
    order = 80  # whatever plain synchronize the others leave

    def claims(self, wait: Wait) -> bool:
        """A plain synchronize; HG108 has claimed those that framework ops make."""
        return wait.copy is CopyKind.NONE and "Memcpy" not in wait.call
