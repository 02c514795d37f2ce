"""Faults of sampling: other settings than were asked for, and a sampler that is not the model that is trained."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, TrainerCallback

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import method
from benchmarks.check.settings.tooling import sampled


def _generating(case, **told):
    """The case whose trainer's own generation config has these values."""
    return case.then(lambda trainer: vars(trainer.generation_config).update(told))


@faulty()
def nearly_greedy_sampler(case: Case) -> Case:
    """A temperature of 0.05 overrides the one that was asked for, as that of a model's own generation config does."""
    return _generating(case, temperature=0.05)


@faulty()
def greedy_sampler(case: Case) -> Case:
    """Sampling is off, so that all completions of a prompt are the same."""
    return _generating(case, do_sample=False)


@faulty()
def reply_limit_too_low(case: Case) -> Case:
    """Replies are cut at a quarter of the tokens that were asked for."""
    return _generating(case, max_new_tokens=case.config["max_completion_length"] // 4)


@faulty()
def top_k_left_on(case: Case) -> Case:
    """The sampler keeps the five likeliest tokens, which nobody asked for."""
    return _generating(case, top_k=5)


@faulty()
def top_p_of_the_sampler_alone(case: Case) -> Case:
    """The sampler cuts its distribution at 0.8, and the trainer was told of none of it."""
    return _generating(case, top_p=0.8)


@faulty()
def repetition_penalty_left_on(case: Case) -> Case:
    """Tokens that were said before are made less likely, which nobody asked for."""
    return _generating(case, repetition_penalty=1.5)


@faulty()
def the_end_is_not_the_end(case: Case) -> Case:
    """Another token than the one that ends a turn is taken for the end, so that replies go on to the limit."""
    end = case.tokenizer.pad_token_id

    def told(trainer):
        trainer.eos_token_id, trainer.eos_token_ids = end, [end]

    return _generating(case, eos_token_id=end).then(told)


@faulty()
def shortest_reply_forced(case: Case) -> Case:
    """No reply may end before its 12th token."""
    return _generating(case, min_new_tokens=12)


@faulty()
def digits_suppressed(case: Case) -> Case:
    """The sampler may not say the digits 4 to 9."""
    return _generating(case, suppress_tokens=case.tokenizer.convert_tokens_to_ids(list("456789")))


@faulty(Case.then)
def temperature_annealed_by_a_callback(trainer):
    """A callback lowers the sampler's temperature at each step; the trainer divides by the first one."""

    class Annealing(TrainerCallback):
        def on_step_end(self, *_, **__):
            trainer.generation_config.temperature *= 0.7

    trainer.add_callback(Annealing())


@faulty()
def temperature_by_generation_kwargs(case: Case) -> Case:
    """`generation_kwargs` asks for temperature 1.5, and the trainer's own setting stays at 1."""
    return case


def _beginning(trainer):
    """Another copy of the model, as it was before training."""
    return AutoModelForCausalLM.from_pretrained(trainer.model.config._name_or_path).float()


def _actor(trainer):
    """Another copy of the policy, as an engine beside the trainer has one."""
    actor = _beginning(trainer)
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
    """The sampler never gets the trained weights."""
    if not hasattr(trainer, "actor"):
        trainer.actor = _actor(trainer)
    return trainer.actor


@faulty(_sampling_from)
def asleep_after_the_first_sync(trainer):
    """The sampler takes the weights of the first update and no others."""
    if trainer.state.global_step <= 1:
        trainer.actor = _actor(trainer)
    return trainer.actor


@faulty(_sampling_from)
def sampler_one_step_behind(trainer):
    """The sampler gets the weights one step late, and nothing corrects for it."""
    chosen = getattr(trainer, "latest", None) or _actor(trainer)
    trainer.latest = _actor(trainer)
    return chosen


@faulty(_sampling_from)
def sampler_in_few_bits(trainer):
    """The sampler's weights are rounded to steps of a sixty-fourth."""
    actor = _actor(trainer)
    with torch.no_grad():
        for weight in actor.parameters():
            weight.copy_((weight * 64).round() / 64)
    return actor


@faulty(_sampling_from)
def output_layer_not_sent(trainer):
    """All weights reach the sampler but those of the output layer."""
    actor = _beginning(trainer)
    sent = {n: w for n, w in trainer.model.state_dict().items() if "lm_head" not in n}
    actor.load_state_dict(sent, strict=False)
    return actor


@faulty(_sampling_from)
def sampler_with_dropout(trainer):
    """Completions are sampled with dropout before the output layer."""
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
    """Requests to the sampler omit the adapter: it stays the base model."""
    with trainer.model.disable_adapter():
        return generate(*args, **named)


@faulty(Case.then)
def prefix_cache_not_reset(trainer):
    """Prompts are read from a cache of keys and values that the first weights made."""
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
    """The first token is sampled once for the whole group."""
    processors = [_FirstTokenShared(trainer.num_generations)]
    return generate(*args, logits_processor=processors, **named)


@faulty(_through)
def one_seed_for_all_samples(trainer, generate, input_ids, attention_mask, **more):
    """Each row is sampled by itself from the same seed, so that all of a group are the same."""
    rows = []
    for ids, mask in zip(input_ids, attention_mask, strict=True):
        torch.manual_seed(1)
        rows.append(generate(ids[None], attention_mask=mask[None], **more)[0])
    pad = trainer.generation_config.pad_token_id
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


@faulty(Case.then)
def engine_never_synced(trainer):
    """The engine's `sync_weights` does nothing."""
    trainer.vllm_generation.sync_weights = lambda: None


@faulty(Case.then)
def engine_reports_raw_logprobs(trainer):
    """The engine reports log-probabilities at temperature 1, and samples at 1.4."""
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
