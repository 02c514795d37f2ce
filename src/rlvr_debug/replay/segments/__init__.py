"""The segments of a training step, in their order: each computes one thing again from its recorded inputs."""

from functools import partial
from typing import Annotated

from rlvr_debug.blocks import Keyed, OneOf
from rlvr_debug.replay.judge import TOGETHER, Segment
from rlvr_debug.replay.segments import (
    advantages,
    gradient,
    logprobs,
    loss,
    micro_batches,
    prompts,
    rewards,
    tokens,
    weights,
    whole,
)
from rlvr_debug.replay.segments.loss_formula import Formula
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.replay.variants import knobs_of

_CALL = partial(Segment, of="calls of the sampler")
_MADE = partial(Segment, of="rollouts")
_PASS = partial(Segment, of="micro-batches", trains=True)
_STEP = partial(Segment, of="updates", trains=True)
_ADVANTAGES = knobs_of(advantages.compare_advantages, advantages.Formula)
_HELD = knobs_of(logprobs.compare_held, logprobs.batch_logprobs)
# passes whose inputs are not recorded
PASSES = ("old log-probabilities", "reference log-probabilities")
_STILL = Keyed({"of": Annotated[str, OneOf(lambda: whole.STILL)]})

SEGMENTS = (
    Segment("processes", whole.processes, Keyed({}), of=TOGETHER, trains=True),
    Segment("groups", prompts.groups, knobs_of(prompts.compare_groups), of="rows"),
    _CALL("prompt", prompts.first_prompts, knobs_of(prompts.compare_prompt, prompts.rendered)),
    _CALL("sampling settings", prompts.sampling_settings, knobs_of(prompts.compare_settings)),
    _CALL("sampler", logprobs.sampler, knobs_of(logprobs.compare_sampler, Sampling)),
    _CALL("tool turns", tokens.tool_turns, knobs_of(tokens.compare_turn, tokens.rendered_turn)),
    _CALL(
        "tokens",
        tokens.tokens,
        knobs_of(tokens.compare_tokens, tokens.built_ids, tokens.rendered_turn),
    ),
    _CALL("loss mask", tokens.loss_mask, knobs_of(tokens.compare_mask)),
    _MADE("rewards", rewards.rewards, Keyed({"wrong": rewards.Wrong})),
    _MADE("advantages", advantages.advantages, _ADVANTAGES, pairs=True),
    _MADE("old log-probabilities", logprobs.old, _HELD),
    _MADE("reference log-probabilities", logprobs.reference, _HELD),
    _MADE("importance weights", advantages.weights, knobs_of(advantages.expected_weights)),
    _PASS("micro-batches", micro_batches.of_rows, knobs_of(micro_batches.compare_part)),
    _PASS("model inputs", micro_batches.inputs, knobs_of(micro_batches.compare_inputs)),
    _PASS("policy log-probabilities", logprobs.policy, knobs_of(logprobs.compare_policy)),
    _PASS("loss", loss.losses, knobs_of(loss.compare_loss, Formula, Settings), pairs=True),
    _PASS("gradient", gradient.gradients, knobs_of(gradient.compare_gradient)),
    _STEP("clip", gradient.clips, knobs_of(gradient.compare_clip)),
    _STEP("weights between steps", weights.between_steps, knobs_of(weights.compare_between)),
    _STEP("optimizer step", weights.optimizer_steps, weights.STEP_KNOBS),
    Segment("saved weights", weights.saved_weights, knobs_of(weights.compare_saved), trains=True),
    Segment("effect", whole.effect, _STILL, trains=True),
)
