"""The reference decoder as a workload: a decode loop like a server's, with defects as switches.

A step is fed the scheduler's say about each row, decodes one token for all of them on the device,
and delivers the tokens to the host, which looks for rows that ended. What the host feeds comes from
a script of the case, so that inputs change from step to step and still are the same each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from hostgap.decoder import host_defects
from hostgap.decoder.defects import DEFECTS, NAIVE, RANK_FAULTS, checked
from hostgap.decoder.loop import EOS, DecodeLoop
from hostgap.decoder.model import Decoder
from hostgap.decoder.sampling import Sampling
from hostgap.errors import ConfigError, TargetError
from hostgap.profiling.aside import Aside
from hostgap.profiling.workload import Workload

# Prompts as parts of the cache: short and long, none of a round length.
PROMPT_SHARES = (0.03, 0.11, 0.23, 0.35)
# How often the scheduler decides about a row instead of the model.
FORCED_SHARE = 0.125
# Records that `gc_pressure` lets live: so many steps' that they reach the old generation.
STEPS_OF_RECORDS = 16


class Server:
    """The host's side of the loop.

    Attributes:
        loop: the device's side.
        room: steps between two calls of `reset`.
        finished: per row, whether the host has seen it end.
        delivered: the last tokens that arrived, [B] each; `steps_kept` of them.
        page_lens: [B] int32 on the host, what a paged attention kernel is planned with.
    """

    def __init__(
        self,
        model: Decoder,
        batch: int,
        defects: frozenset[str],
        sampling: Sampling | None,
        steps_kept: int,
        faults: frozenset[str] = frozenset(),
    ) -> None:
        self.defects = defects
        self.faults = faults
        self.loop = DecodeLoop(model, batch, sampling, defects)
        self.batch = batch
        grows = "alloc_per_step" in defects
        windows = host_defects.EARLIER_WINDOWS if grows else 0
        self.earlier = windows * model.config.max_seq_len
        self.device = self.loop.tokens.device
        slots, vocab_size = model.config.max_seq_len, model.config.vocab_size
        lengths = [1 + int(share * slots) for share in PROMPT_SHARES]
        self.room = slots - max(lengths)
        self.prompts = [prompt_of(case, batch, lengths[case], vocab_size) for case in range(4)]
        self.scripts = [script_of(case, batch, self.room, vocab_size) for case in range(4)]
        self.delivered: deque[Tensor] = deque(maxlen=steps_kept)
        self.records: deque[host_defects.Record] = deque(maxlen=STEPS_OF_RECORDS)
        self.page_lens = torch.ones(batch, dtype=torch.int32)
        if "table_upload" in faults:
            self.table = torch.zeros(host_defects.TABLE_BYTES, dtype=torch.uint8)
            self.table_there = torch.zeros_like(self.table, device=self.device)
        self.reset(0)

    def reset(self, case: int) -> None:
        """Prefill the case's prompt and forget all that was decoded."""
        self.prompt, self.script = self.prompts[case], self.scripts[case]
        self.loop.prefill(self.prompt)
        tokens = self.loop.tokens
        self.grown = torch.cat((tokens.new_zeros(self.batch, self.earlier), tokens), dim=1)
        self.fed = self.steps = 0
        self.finished = [False] * self.batch
        self.delivered.clear()
        self.records.clear()

    def feed(self) -> tuple[Tensor, ...]:
        """The forced tokens of the next step, [B] int64 on the CPU; -1 where the model chooses."""
        # A fix that feeds ahead asks once more than there are steps.
        row = self.script[min(self.fed, self.room - 1)]
        self.fed += 1
        return (row,)

    def upload_lists(self) -> tuple[Tensor, ...]:
        """The defect `list_upload` in place of feeding a tensor."""
        return tuple(
            host_defects.list_upload(tensor.tolist(), self.device) for tensor in self.feed()
        )

    def before(self) -> None:
        """What the host prepares before it orders a step."""
        if self.steps == self.room:
            raise TargetError(
                f"the decoder's cache is full after {self.room} steps",
                "Begin a case anew: reset().",
            )
        if "host_work" in self.faults:
            host_defects.host_work()
        if "table_upload" in self.faults:
            host_defects.table_upload(self.table_there, self.table)
        if "page_lens_download" in self.defects:
            self.page_lens = host_defects.page_lens_download(self.batch, self.device)
        else:
            self.page_lens = torch.ones(self.batch, dtype=torch.int32)
        if "positions_on_host" in self.defects:
            position = self.prompt.shape[1] + self.steps
            host_defects.positions_on_host(self.loop.positions, position)
        self.steps += 1

    def after(self, output: tuple[Tensor, Aside]) -> None:
        """What the host does once a step is ordered: all of it defects."""
        tokens, _ = output
        if "eos_read" in self.defects:
            for row in host_defects.eos_read(tokens, EOS):
                self.finished[row] = True
        if "mask_select" in self.defects:
            host_defects.mask_select(self.loop.lengths, self.loop.finished)
        if "alloc_per_step" in self.defects:
            self.grown = host_defects.alloc_per_step(self.grown, tokens)
        if "gc_pressure" in self.defects:
            self.records.append(host_defects.gc_pressure())

    def deliver(self, tokens: Tensor) -> None:
        """Take a step's tokens, [B] on the CPU, however late they come."""
        self.delivered.append(tokens.clone())  # whoever delivers may use the memory again
        if "eos_read" in self.defects:
            return
        for row, token in enumerate(tokens.tolist()):
            if token == EOS:
                self.finished[row] = True

    def decoded(self) -> Tensor:
        """All tokens after the prompt, as the device keeps them: [B, steps + 1]."""
        if "alloc_per_step" in self.defects:
            return self.grown[:, self.earlier :]
        start = self.prompt.shape[1]
        return self.loop.history[:, start : start + self.steps + 1]

    def workload(self) -> Workload:
        """The loop in parts, as fixes take it."""
        return Workload(
            body=self.loop,
            feed=self.feed,
            deliver=self.deliver,
            before=self.before,
            after=self.after,
            reset=self.reset,
            cases=len(self.prompts),
            room=self.room,
            modules=(self.loop.model,),
            device=str(self.device),
            tokens=self.batch,
            upload=self.upload_lists if "list_upload" in self.defects else None,
        )


def prompt_of(case: int, batch: int, length: int, vocab_size: int) -> Tensor:
    """The prompt of a case: [B, T] int64, another for each row."""
    generator = torch.Generator().manual_seed(case)
    return torch.randint(EOS + 1, vocab_size, (batch, length), generator=generator)


def script_of(case: int, batch: int, steps: int, vocab_size: int) -> Tensor:
    """What the scheduler says in each step of a case: [steps, B] int64, -1 for nothing."""
    generator = torch.Generator().manual_seed(1000 + case)
    said = torch.randint(EOS + 1, vocab_size, (steps, batch), generator=generator)
    silent = torch.rand(steps, batch, generator=generator) >= FORCED_SHARE
    said[silent] = -1
    said[5 + case, case % batch] = EOS  # some row ends, and early enough to be seen in tests
    return said


def decoder_workload(
    model: Decoder,
    batch: int = 1,
    defects: Iterable[str] = (),
    sampling: Sampling | None = None,
    steps_kept: int = 256,
    faults: Iterable[str] = (),
) -> Workload:
    """A model in a serving-like decode loop, standing at the beginning of case 0.

    Args:
        model: shared; loops keep nothing in it.
        batch: rows that are decoded together.
        defects: of the loop, by name. Those of the model may be among them if it has them.
            `output_blocking` and `input_blocking` are the workload's plain path: fixes treat them,
            and nothing is added here.
        sampling: None for the likeliest token.
        steps_kept: how many of the last delivered tokens the host keeps.
        faults: of `RANK_FAULTS`, that hold up this rank of several.

    Raises:
        ConfigError: an unknown defect or fault, or a defect of the model that it was built without.
    """
    unknown = frozenset(faults) - set(RANK_FAULTS)
    if unknown:
        raise ConfigError(
            f"no fault '{min(unknown)}' of a rank", f"Faults: {', '.join(RANK_FAULTS)}."
        )
    wanted = checked(defects)
    absent = (wanted & NAIVE) - model.defects
    if absent and wanted != NAIVE:  # which stands for what the model can have
        raise ConfigError(
            f"the model was built without the defect '{min(absent)}'",
            "Give it to build_decoder as well.",
        )
    loop_defects = frozenset(name for name in wanted if DEFECTS[name].kind == "loop")
    server = Server(model, batch, loop_defects, sampling, steps_kept, frozenset(faults))
    return server.workload()
