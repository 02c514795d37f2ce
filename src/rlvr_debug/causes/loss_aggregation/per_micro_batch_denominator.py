"""Each micro-batch is averaged over its own tokens or sequences, as if it were the whole batch.

verl PR 906, prime-rl 2358, open-instruct PR 1137 and TRL 3021; row 44 of known bugs. The gradient depends
on how the batch is cut. The aggregation `bnpo` is defined so, and a single micro-batch is the whole.
"""

from torch import Tensor

from rlvr_debug.grpo.objective import Totals, aggregate

STAGE = "aggregate"


def implementation(values: Tensor, mask: Tensor, totals: Totals, aggregation: str) -> Tensor:
    own = Totals(len(mask), int(mask.sum()), 1, totals.max_tokens)
    return aggregate(values, mask, own, aggregation) / totals.micro_batches
