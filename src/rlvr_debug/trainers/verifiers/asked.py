"""What a release's GRPOConfig asks for, in this project's words."""

from __future__ import annotations

from typing import Any

from rlvr_debug.recorders.trl.settings import optimizer_settings, precision_of, sampling_of
from rlvr_debug.replay.settings import Settings

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def asked_settings(trainer: Any, model: Any, dropouts: int) -> Settings:
    """Return what the release's trainer was told. dropouts: how many modules of the model have some.

    The rubric's weights are in the reward that it hands the trainer, which is one number for each rollout.
    """
    args, tokenizer = trainer.args, trainer.processing_class
    return Settings(
        group_size=args.num_generations,
        sampling=sampling_of(
            {
                **{name: getattr(args, name) for name in _SAMPLING},
                "max_new_tokens": trainer.max_tokens,
            }
        ),
        max_completion_length=trainer.max_seq_len,
        num_iterations=args.num_iterations,
        micro_batches=args.gradient_accumulation_steps,
        steps_per_generation=args.gradient_accumulation_steps,
        scale_rewards="group" if args.scale_rewards else "none",
        mask_truncated_completions=args.mask_truncated_completions,
        loss_type=args.loss_type,
        kl_beta=args.beta,
        clip=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        delta=args.delta,
        **optimizer_settings(trainer, own=False),
        first_step=trainer.state.global_step,
        max_grad_norm=args.max_grad_norm,
        precision=precision_of(args, model),
        eos_ids=(tokenizer.eos_token_id,),
        pad_id=tokenizer.pad_token_id,
        dropouts=dropouts,
    )
