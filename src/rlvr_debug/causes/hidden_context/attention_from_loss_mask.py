"""The loss mask is handed to the model as its attention mask.

verifiers 0.1.2 to 0.1.6.post0, trainers/grpo_trainer.py (0.1.3: lines 1083 to 1106 and 1187 to 1194);
row 0 of known bugs. When the loss is computed the policy sees neither the question nor a tool result.
"""

from torch import Tensor

STAGE = "attention_mask"


def implementation(sampled: Tensor, real: Tensor) -> Tensor:
    return sampled & real
