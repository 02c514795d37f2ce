"""Faults of sampling: other settings than were asked for, and a sampler that is not the model that is trained."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor, TrainerCallback

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty, itself
from benchmarks.check.faults.ways import beginning, method
from benchmarks.check.settings.tooling import sampled


def _generating(case, told):
    """The case whose trainer's own generation config has these values."""
    return case.then(lambda trainer: vars(trainer.generation_config).update(told))


faults(
    _generating,
    nearly_greedy_sampler={"temperature": 0.05},
    greedy_sampler={"do_sample": False},
    top_k_left_on={"top_k": 5},
    top_p_of_the_sampler_alone={"top_p": 0.8},
    repetition_penalty_left_on={"repetition_penalty": 1.5},
    shortest_reply_forced={"min_new_tokens": 12},
)

faults(
    itself,
    reply_limit_too_low=lambda case: _generating(
        case, {"max_new_tokens": case.config["max_completion_length"] // 4}
    ),
    digits_suppressed=lambda case: _generating(
        case, {"suppress_tokens": case.tokenizer.convert_tokens_to_ids(list("456789"))}
    ),
    temperature_by_generation_kwargs=lambda case: case,
)


@faulty()
def the_end_is_not_the_end(case: Case) -> Case:
    end = case.tokenizer.pad_token_id

    def told(trainer):
        trainer.eos_token_id, trainer.eos_token_ids = end, [end]

    return _generating(case, {"eos_token_id": end}).then(told)


@faulty(Case.then)
def temperature_annealed_by_a_callback(trainer):
    class Annealing(TrainerCallback):
        def on_step_end(self, *_, **__):
            trainer.generation_config.temperature *= 0.7

    trainer.add_callback(Annealing())


def _actor(trainer):
    """Another copy of the policy, as an engine beside the trainer has one."""
    actor = beginning(trainer)
    actor.load_state_dict(trainer.model.state_dict())
    return actor


def _sampling_from(case, choose):
    """The case whose completions are sampled from what `choose` returns."""

    def sampling(trainer, usual, inputs):
        held, trainer.model_wrapped = trainer.model_wrapped, choose(trainer)
        try:
            return usual(inputs)
        finally:
            trainer.model_wrapped = held

    return method("_generate_and_score_completions")(case, sampling)


@faulty(_sampling_from)
def stale_sampler(trainer):
    if not hasattr(trainer, "actor"):
        trainer.actor = _actor(trainer)
    return trainer.actor


@faulty(_sampling_from)
def asleep_after_the_first_sync(trainer):
    if trainer.state.global_step <= 1:
        trainer.actor = _actor(trainer)
    return trainer.actor


@faulty(_sampling_from)
def sampler_one_step_behind(trainer):
    chosen = getattr(trainer, "latest", None) or _actor(trainer)
    trainer.latest = _actor(trainer)
    return chosen


@faulty(_sampling_from)
def sampler_in_few_bits(trainer):
    actor = _actor(trainer)
    with torch.no_grad():
        for weight in actor.parameters():
            weight.copy_((weight * 64).round() / 64)
    return actor


@faulty(_sampling_from)
def output_layer_not_sent(trainer):
    actor = beginning(trainer)
    sent = {n: w for n, w in trainer.model.state_dict().items() if "lm_head" not in n}
    actor.load_state_dict(sent, strict=False)
    return actor


@faulty(_sampling_from)
def sampler_with_dropout(trainer):
    actor = _actor(trainer)
    actor.model.norm.register_forward_hook(lambda *a: torch.dropout(a[2], 0.2, True))
    return actor


def _through(case, call):
    """The case in which `call` is called for the model's `generate`, with the trainer, the usual one and its arguments."""

    def instead(trainer):
        usual = trainer.model.generate
        trainer.model.generate = lambda *args, **named: call(trainer, usual, *args, **named)

    return case.then(instead)


@faulty(_through)
def adapter_omitted(trainer, generate, *args, **named):
    with trainer.model.disable_adapter():
        return generate(*args, **named)


@faulty(Case.then)
def prefix_cache_not_reset(trainer):
    stale, generate = _actor(trainer).eval(), trainer.model.generate

    @torch.no_grad()
    def with_cache(input_ids, attention_mask, **more):
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)
        before = {"input_ids": input_ids[:, :-1], "attention_mask": attention_mask[:, :-1]}
        cache = stale(**before, position_ids=places[:, :-1], use_cache=True).past_key_values
        return generate(input_ids, attention_mask=attention_mask, past_key_values=cache, **more)

    trainer.model.generate = with_cache


class _FirstTokenShared(LogitsProcessor):
    """Leaves each row of a group only the token that was drawn for its first row."""

    def __init__(self, group):
        self.group, self.begun = group, False

    def __call__(self, input_ids, scores):
        if self.begun:
            return scores
        self.begun = True
        drawn = torch.multinomial(scores[:: self.group].softmax(-1), 1)
        wanted = drawn.repeat_interleave(self.group, 0)
        return torch.full_like(scores, -torch.inf).scatter(1, wanted, 0.0)


@faulty(_through)
def first_token_of_the_group(trainer, generate, *args, **named):
    processors = [_FirstTokenShared(trainer.num_generations)]
    return generate(*args, logits_processor=processors, **named)


@faulty(_through)
def one_seed_for_all_samples(trainer, generate, input_ids, attention_mask, **more):
    rows = []
    for ids, mask in zip(input_ids, attention_mask, strict=True):
        torch.manual_seed(1)
        rows.append(generate(ids[None], attention_mask=mask[None], **more)[0])
    pad = trainer.generation_config.pad_token_id
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


@faulty(Case.then)
def engine_never_synced(trainer):
    trainer.vllm_generation.sync_weights = lambda: None


@faulty(Case.then)
def engine_reports_raw_logprobs(trainer):
    held = trainer.vllm_generation

    def generate(prompts, images, num_generations, profiler=None):
        replies, _ = sampled(held.model, prompts, trainer)
        logps = [_scored(held.model, p, r) for p, r in zip(prompts, replies, strict=True)]
        return prompts, replies, [[[value] for value in row] for row in logps], None

    held.generate = generate


@torch.no_grad()
def _scored(model, prompt, reply):
    logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(reply)[:, None])[:, 0].tolist()
