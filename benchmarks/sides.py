"""One training step, ours and TRL 1.16.0's, each with its own parts, on the same conversations.

Both take the batch in micro-batches of a given size. They sample the conversations (replay.py),
compute the reference's log-probabilities, then loss and gradient, clip it and make an AdamW step. Left
out on both sides: prompts as text, tools and rewards.

TRL: a reply is its _generate_single_turn, which its tool loop calls with the whole history of those
that go on; the tensors are padded as its _generate_and_score_completions pads them; then
_get_per_token_logps_and_entropies on the reference, _compute_loss, backward and its own optimizer.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.replay import (
    PARAMS,
    Conversation,
    Forced,
    build_model,
    forced_processor,
    padded,
    replay,
    replayed,
)
from rlvr_debug.grpo.loss import Batch, Experience
from rlvr_debug.grpo.objective import Totals
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import (
    batch_totals,
    build_optimizer,
    build_scheduler,
    shared_logprobs,
    update_policy,
)
from rlvr_debug.grpo.training import Observer, TrainerState

STAGES = ("rollout", "reference", "forward", "backward", "optimizer")
# one update, as the other side makes
SETTINGS = replace(PARAMS.training, num_iterations=1)

Step = Callable[[], None]


class Clock:
    """Seconds of processor time by stage; what is timed inside a stage is not that stage's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        start, before = time.process_time(), sum(self.seconds.values())
        yield
        inside = sum(self.seconds.values()) - before
        self.seconds[stage] += time.process_time() - start - inside


def our_step(
    size: str, folder: Path, conversations: list[Conversation], clock: Clock, micro_batch: int
) -> Step:
    settings = replace(SETTINGS, gradient_accumulation_steps=len(conversations) // micro_batch)
    model, reference = build_model(size, folder)
    sampler = Forced(model.config.to_dict(), model.state_dict(), {model.config.eos_token_id})
    state, stages = our_state(model, reference, sampler, settings), Stages()

    class Timed(Processes):
        def backward(self, loss: Tensor) -> None:
            with clock.of("backward"):
                super().backward(loss)

        def clip(self, policy: Any, norm: float) -> float:
            with clock.of("optimizer"):
                return super().clip(policy, norm)

    def optimizer_step(optimizer: torch.optim.Optimizer) -> None:
        with clock.of("optimizer"):
            stages.optimizer_step(optimizer)

    def step() -> None:
        with clock.of("rollout"):
            ids, sampled, logprobs = replayed(conversations, sampler)
        with clock.of("forward"):
            batch = our_batch(ids, sampled, logprobs)
        with clock.of("reference"):
            held = shared_logprobs(reference, batch, settings, stages, processes)
        with clock.of("forward"):
            totals = batch_totals(batch, settings, max(map(len, ids)), processes)
            experience = our_experience(batch, held, totals)
            timed = replace(stages, optimizer_step=optimizer_step)
            update_policy(state, experience, settings, timed, processes, Observer())
        with clock.of("optimizer"):
            stages.sync(state.policy, sampler)

    processes = Timed()
    return step


def our_state(model: Any, reference: Any, sampler: Any, settings: TrainingSettings) -> TrainerState:
    policy = build_policy(model, reference, settings, seed=0)
    optimizer = build_optimizer(policy.trained, settings)
    scheduler = build_scheduler(optimizer, settings)
    return TrainerState(0, policy, optimizer, scheduler, sampler, random.Random(0))


def our_batch(ids: list[list[int]], sampled: list[list[bool]], values: list[list[float]]) -> Batch:
    tokens, mask = padded(ids), padded(sampled)
    real = torch.arange(tokens.shape[1]) < torch.tensor([[len(each)] for each in ids])
    sampler = torch.zeros(tokens.shape)
    sampler[mask] = torch.tensor([value for each in values for value in each])
    return Batch(tokens, mask, sampler, real, mask, real)


def our_experience(batch: Batch, reference: Tensor | None, totals: Totals) -> Experience:
    gains = advantages(len(batch.ids))
    return Experience(**vars(batch), advantages=gains, reference=reference, old=None, totals=totals)


def advantages(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


def trl_step(
    size: str, folder: Path, conversations: list[Conversation], clock: Clock, micro_batch: int
) -> Step:
    count = len(conversations)
    build_model(size, folder)
    precision = {"use_cpu": True, "bf16": False, "model_init_kwargs": {"dtype": "float32"}}
    like_ours = {"temperature": SETTINGS.temperature, "beta": SETTINGS.kl_beta, **precision}
    trainer = trl_trainer(str(folder), folder, count, micro_batch, like_ours)
    trainer.model.train()
    model, eos_id = trainer.model, trainer.model.config.eos_token_id
    optimizer = trainer.create_optimizer()
    logprobs = trainer._get_per_token_logps_and_entropies

    def replies(slots: list[int], histories: list[list[int]], lengths: list[int]) -> Any:
        processor = forced_processor(max(map(len, histories)), lengths, eos_id)
        model.generate = partial(type(model).generate, model, logits_processor=[processor])
        trainer.generation_config.max_new_tokens = max(lengths)
        return trainer._generate_single_turn(histories, None, {}, num_generations=8)[0]

    def step() -> None:
        with clock.of("rollout"):
            ids, sampled = replay(conversations, replies)
        with clock.of("forward"):
            inputs = trl_inputs(conversations, ids, sampled, trainer._tokenizer.pad_token_id)
        prompts, masks = inputs["prompt_ids"], inputs["prompt_mask"]
        with clock.of("reference"), torch.no_grad():
            inputs["ref_per_token_logps"], _, _ = logprobs(
                trainer.ref_model,
                torch.cat([prompts, inputs["completion_ids"]], 1),
                torch.cat([masks, inputs["completion_mask"]], 1),
                inputs["completion_ids"].shape[1],
                batch_size=micro_batch,
            )
        for part in parts_of(inputs, micro_batch):
            with clock.of("forward"):
                loss = trainer._compute_loss(model, part)
            with clock.of("backward"):
                trainer.accelerator.backward(loss)
        with clock.of("optimizer"):
            trainer.accelerator.clip_grad_norm_(model.parameters(), SETTINGS.max_grad_norm)
            optimizer.step()
            model.zero_grad()

    return step


def trl_trainer(
    model: Any, folder: Path, count: int, micro_batch: int, config: Mapping[str, Any], **more: Any
) -> Any:
    """Return the trainer of a batch of `count`. config: further arguments of GRPOConfig; more: of the trainer."""
    import datasets
    import trl

    usual = {
        "output_dir": str(folder / "out"),
        "gradient_checkpointing": False,
        "report_to": [],
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": count // micro_batch,
        "num_generations": 8,
        "learning_rate": SETTINGS.learning_rate,
        "loss_type": "dapo",
    }
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=trl.GRPOConfig(**{**usual, **config}),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * count),
        **more,
    )
    trainer.current_gradient_accumulation_steps = count // micro_batch
    return trainer


def parts_of(inputs: Mapping[str, Tensor], micro_batch: int) -> Iterator[dict[str, Tensor]]:
    """Yield the micro-batches of what TRL's loss is given."""
    count, device = len(inputs["advantages"]), inputs["advantages"].device
    for rows in torch.split(torch.arange(count, device=device), micro_batch):
        yield {name: value[rows] if value.dim() else value for name, value in inputs.items()}


def trl_inputs(
    conversations: list[Conversation],
    ids: list[list[int]],
    sampled: list[list[bool]],
    pad_id: int,
) -> dict[str, Tensor]:
    starts = [len(each.prompt) for each in conversations]
    prompts = [row[:n] for row, n in zip(ids, starts, strict=True)]
    completions = [row[n:] for row, n in zip(ids, starts, strict=True)]
    masks = [[int(x) for x in row[n:]] for row, n in zip(sampled, starts, strict=True)]
    return {
        "prompt_ids": padded(prompts, "left", pad_id),
        "prompt_mask": padded([[1] * len(row) for row in prompts], "left", 0),
        "completion_ids": padded(completions, "right", pad_id),
        "completion_mask": padded([[1] * len(row) for row in completions], "right", 0),
        "tool_mask": padded(masks, "right", 1),
        "advantages": advantages(len(ids)),
        "num_items_in_batch": torch.tensor(sum(map(sum, masks))),
    }
