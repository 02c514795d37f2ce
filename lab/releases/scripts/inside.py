"""A library's own advantages or loss within TRL's trainer: `inside.py LIBRARY [name=value ...]`."""

import sys

import torch
from common import COMMON, GROUP, settings, told
from libraries import ADVANTAGES, LOSSES
from trl import GRPOConfig, GRPOTrainer

library, *words = sys.argv[1:]


class Inside(GRPOTrainer):
    def _calculate_rewards(self, *given, **named):
        self.scored = super()._calculate_rewards(*given, **named)
        return self.scored

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        if library in ADVANTAGES:
            out["advantages"] = torch.as_tensor(ADVANTAGES[library](self.scored, GROUP)).float()
        return out

    def _compute_loss(self, model, inputs):
        if library not in LOSSES:
            return super()._compute_loss(model, inputs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        real = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        size = inputs["completion_ids"].shape[1]
        logps = self._get_per_token_logps_and_entropies(model, ids, real, size)[0]
        old, reference = (inputs.get(f"{name}_per_token_logps") for name in ("old", "ref"))
        old = logps.detach() if old is None else old
        loss = LOSSES[library](
            logps,
            old,
            reference,
            inputs["advantages"],
            inputs["completion_mask"].float(),
            self.beta,
        )
        return loss / self.current_gradient_accumulation_steps


args = GRPOConfig(**{**COMMON, "loss_type": "grpo", **settings(words)})
Inside(args=args, **told()).train()
