"""One rank of a decoder that several share, on a CPU: prints what it decodes, as JSON.

python -m tests.decoder.rank_main RANK RANKS MEETING
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist

from hostgap.decoder.defects import NAIVE
from hostgap.decoder.model import Decoder, build_decoder
from hostgap.decoder.parallel import shard
from hostgap.decoder.workload import Server
from hostgap.profiling.lockstep import Rank, join

STEPS, BATCH = 12, 2
MODELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("tiny", NAIVE),
    ("tiny", frozenset()),
    ("tiny-gelu", NAIVE),
    ("tiny-gelu", frozenset()),
)


def decode(model: Decoder, faults: Iterable[str] = ()) -> tuple[list[list[int]], list[float]]:
    """Tokens [B][T] of some steps of case 1, and the last logits of row 0."""
    server = Server(model, BATCH, frozenset(), None, 64, frozenset(faults))
    workload = server.workload()
    server.reset(1)
    for _ in range(STEPS):
        _, aside = workload.step()
    return server.decoded().tolist(), aside.tensor[0].tolist()


def main() -> None:
    index, ranks, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    join(Rank(index, ranks, meeting, 0), group=True)
    found = []
    for preset, defects in MODELS:
        whole = build_decoder(preset, device="cpu", defects=defects)
        found.append(decode(shard(whole, index, ranks), ("table_upload",) if index else ()))
    print(json.dumps(found))  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
