"""The record of several processes, put together from what each of them wrote."""

from __future__ import annotations

import time
from typing import Any

from rlvr_debug.recorders.ranks import merged
from rlvr_debug.recorders.trl.launched import Ranks
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.store import read_part, write_record

__all__ = ["need_replicas", "together"]

_POLL = 0.05


def need_replicas(accelerator: Any, size: int) -> None:
    """End the process, with one line, where its training is of a kind that is not recorded yet."""
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM") and size > 1:
        raise SystemExit(
            f"{kind} shards what it trains, which is not recorded yet: copies of it (DDP) are"
        )
    if accelerator.num_processes != size:
        raise SystemExit(
            f"the trainer takes itself for one of {accelerator.num_processes} processes, and {size} were started"
        )


def together(record: Record, ranks: Ranks) -> Record | None:
    """Return the record of all ranks on the first of them, when all have written their parts; None on the others."""
    if ranks.rank:
        write_record(record, ranks.part(ranks.rank))
        return None
    ranks.part(0).mkdir()
    others = [ranks.part(rank) for rank in range(1, ranks.size)]
    while not all(each.exists() for each in others):
        time.sleep(_POLL)
    return merged([record, *map(read_part, others)])
