"""Faults of sampling: other settings than were asked for, and a sampler that is not the model that is trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, TrainerCallback

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_SHARED = ("group-construction",)


def _generating(case, **told):
    """The case whose trainer's own generation config has these values."""

    def tell(trainer):
        for name, value in told.items():
            setattr(trainer.generation_config, name, value)

    return case.then(tell)


@faulty("sampling settings", origin="benchmark", source="Liuziyu77/Visual-RFT 122", causes=_SHARED)
def nearly_greedy_sampler(case: Case) -> Case:
    """A temperature of 0.05 overrides the one that was asked for, as that of a model's own generation config does."""
    return _generating(case, temperature=0.05)


@faulty("sampling settings", origin="own", causes=_SHARED)
def greedy_sampler(case: Case) -> Case:
    """Sampling is off, so that all completions of a prompt are the same."""
    return _generating(case, do_sample=False)


@faulty(
    "sampling settings",
    origin="library",
    source="autocontext PR 1067",
    causes=("context-truncation",),
)
def reply_limit_too_low(case: Case) -> Case:
    """Replies are cut at a quarter of the tokens that were asked for."""
    return _generating(case, max_new_tokens=case.config["max_completion_length"] // 4)


@faulty("sampling settings", origin="own", causes=("sampler-mismatch",))
def top_k_left_on(case: Case) -> Case:
    """The sampler keeps the five likeliest tokens, which nobody asked for."""
    return _generating(case, top_k=5)


@faulty(
    "sampling settings", origin="known", source="TRL 6789, PR 7269", causes=("sampler-mismatch",)
)
def top_p_of_the_sampler_alone(case: Case) -> Case:
    """The sampler cuts its distribution at 0.8, and the trainer was told of none of it."""
    return _generating(case, top_p=0.8)


@faulty("sampling settings", origin="own", causes=("sampler-mismatch",))
def repetition_penalty_left_on(case: Case) -> Case:
    """Tokens that were said before are made less likely, which nobody asked for."""
    return _generating(case, repetition_penalty=1.5)


@faulty("sampling settings", origin="known", source="TRL PR 7039", causes=("context-truncation",))
def the_end_is_not_the_end(case: Case) -> Case:
    """Another token than the one that ends a turn is taken for the end, so that replies go on to the limit."""
    end = case.tokenizer.pad_token_id

    def told(trainer):
        trainer.eos_token_id, trainer.eos_token_ids = end, [end]

    return _generating(case, eos_token_id=end).then(told)


@faulty("sampling settings", origin="own")
def shortest_reply_forced(case: Case) -> Case:
    """No reply may end before its 12th token."""
    return _generating(case, min_new_tokens=12)


@faulty(
    "sampling settings",
    "sampler",
    origin="own",
    why="suppressed tokens are a setting of `generate`, and what they do is seen in the sampler's distribution",
)
def digits_suppressed(case: Case) -> Case:
    """The sampler may not say the digits 4 to 9."""
    return _generating(case, suppress_tokens=case.tokenizer.convert_tokens_to_ids(list("456789")))


@faulty("sampling settings", origin="own", causes=("sampler-mismatch",))
def temperature_annealed_by_a_callback(case: Case) -> Case:
    """A callback lowers the sampler's temperature at each step; the trainer divides by the first one."""

    def annealed(trainer):
        class Annealing(TrainerCallback):
            def on_step_end(self, *_, **__):
                trainer.generation_config.temperature *= 0.7

        trainer.add_callback(Annealing())

    return case.then(annealed)


@faulty(
    "sampling settings",
    "sampler",
    "policy log-probabilities",
    origin="own",
    causes=("sampler-mismatch",),
    config={"generation_kwargs": {"temperature": 1.5}},
    why="two settings contradict each other: either the sampler's temperature is wrong or the trainer's is",
)
def temperature_by_generation_kwargs(case: Case) -> Case:
    """`generation_kwargs` asks for temperature 1.5, and the trainer's own setting stays at 1."""
    return case


def _actor(trainer):
    """Another copy of the policy, as an engine beside the trainer has one."""
    actor = AutoModelForCausalLM.from_pretrained(trainer.model.config._name_or_path).float()
    actor.load_state_dict(trainer.model.state_dict())
    return actor


def _sampling_from(case, choose):
    """The case whose completions are sampled from what `choose` returns."""

    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            held, self.model_wrapped = self.model_wrapped, choose(self)
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                self.model_wrapped = held

    return replace(case, trainer=Trainer)


@faulty(
    "sampler",
    origin="library",
    source="TRL 5312, ms-swift 9855, miles PR 2075, verl PR 5220",
    causes=("lora-weight-sync",),
)
def stale_sampler(case: Case) -> Case:
    """The sampler never gets the trained weights."""

    def first(trainer):
        if not hasattr(trainer, "actor"):
            trainer.actor = _actor(trainer)
        return trainer.actor

    return _sampling_from(case, first)


@faulty("sampler", origin="benchmark", source="TRL 5312, PR 5313", causes=("lora-weight-sync",))
def asleep_after_the_first_sync(case: Case) -> Case:
    """The sampler takes the weights of the first update and no others."""

    def once(trainer):
        if trainer.state.global_step <= 1:
            trainer.actor = _actor(trainer)
        return trainer.actor

    return _sampling_from(case, once)


@faulty("sampler", origin="own", causes=("lora-weight-sync",))
def sampler_one_step_behind(case: Case) -> Case:
    """The sampler gets the weights one step late, and nothing corrects for it."""

    def late(trainer):
        chosen = getattr(trainer, "latest", None) or _actor(trainer)
        trainer.latest = _actor(trainer)
        return chosen

    return _sampling_from(case, late)


@faulty("sampler", origin="own", causes=("sampler-mismatch",))
def sampler_in_few_bits(case: Case) -> Case:
    """The sampler's weights are rounded to steps of a sixty-fourth."""

    def rounded(trainer):
        actor = _actor(trainer)
        with torch.no_grad():
            for weight in actor.parameters():
                weight.copy_((weight * 64).round() / 64)
        return actor

    return _sampling_from(case, rounded)


@faulty("sampler", origin="own", causes=("lora-weight-sync",))
def output_layer_not_sent(case: Case) -> Case:
    """All weights reach the sampler but those of the output layer."""

    def partly(trainer):
        actor = AutoModelForCausalLM.from_pretrained(trainer.model.config._name_or_path).float()
        sent = {n: w for n, w in trainer.model.state_dict().items() if "lm_head" not in n}
        actor.load_state_dict(sent, strict=False)
        return actor

    return _sampling_from(case, partly)


@faulty("sampler", origin="own", causes=("sampler-mismatch",))
def sampler_with_dropout(case: Case) -> Case:
    """Completions are sampled with dropout before the output layer."""

    def thinned(trainer):
        actor = _actor(trainer)
        actor.model.norm.register_forward_hook(lambda *a: torch.dropout(a[2], 0.2, True))
        return actor

    return _sampling_from(case, thinned)


@faulty(
    "sampler",
    origin="known",
    source="ms-swift 9855, miles PR 2075",
    causes=("lora-weight-sync",),
    setting="lora",
)
def adapter_omitted(case: Case) -> Case:
    """Requests to the sampler omit the adapter: it stays the base model."""

    class Trainer(case.trainer):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            generate = self.model.generate

            def without(*a, **k):
                with self.model.disable_adapter():
                    return generate(*a, **k)

            self.model.generate = without

    return replace(case, trainer=Trainer)


@faulty(
    "sampler",
    origin="known",
    source="prime-rl 1650, ms-swift PR 5143",
    causes=("lora-weight-sync",),
)
def prefix_cache_not_reset(case: Case) -> Case:
    """Prompts are read from a cache of keys and values that the first weights made."""

    def cached(trainer):
        stale, generate = _actor(trainer).eval(), trainer.model.generate

        @torch.no_grad()
        def with_cache(input_ids, attention_mask, **more):
            places = (attention_mask.cumsum(1) - 1).clamp(min=0)
            before = {"input_ids": input_ids[:, :-1], "attention_mask": attention_mask[:, :-1]}
            cache = stale(**before, position_ids=places[:, :-1], use_cache=True).past_key_values
            return generate(input_ids, attention_mask=attention_mask, past_key_values=cache, **more)

        trainer.model.generate = with_cache

    return case.then(cached)


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


@faulty(
    "sampler",
    "sampling settings",
    origin="known",
    source="nanochat commit 8f979a8",
    causes=_SHARED,
    why="a logits processor that nobody asked for is a setting of `generate`, and changes what the sampler draws from",
)
def first_token_of_the_group(case: Case) -> Case:
    """The first token is sampled once for the whole group."""

    def shared(trainer):
        generate = trainer.model.generate

        def processed(*args, **named):
            processors = [_FirstTokenShared(trainer.num_generations)]
            return generate(*args, logits_processor=processors, **named)

        trainer.model.generate = processed

    return case.then(shared)


@faulty(
    "sampler",
    "groups",
    "effect",
    origin="known",
    source="pytorch/torchtitan PR 3474",
    causes=_SHARED,
    why="each token is drawn from the right distribution, but all rows draw alike: groups without contrast, and no effect",
)
def one_seed_for_all_samples(case: Case) -> Case:
    """Each row is sampled by itself from the same seed, so that all of a group are the same."""

    def seeded(trainer):
        generate = trainer.model.generate

        def alone(input_ids, attention_mask, **more):
            rows = []
            for ids, mask in zip(input_ids, attention_mask, strict=True):
                torch.manual_seed(1)
                rows.append(generate(ids[None], attention_mask=mask[None], **more)[0])
            pad = trainer.generation_config.pad_token_id
            return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)

        trainer.model.generate = alone

    return case.then(seeded)


@faulty(
    "sampler",
    origin="own",
    setting="engine",
    causes=("lora-weight-sync",),
    since="1.16.0",
)
def engine_never_synced(case: Case) -> Case:
    """The engine's `sync_weights` does nothing."""

    def asleep(trainer):
        trainer.vllm_generation.sync_weights = lambda: None

    return case.then(asleep)


@faulty(
    "sampler",
    origin="own",
    source="TRL's warning of --logprobs-mode raw_logprobs",
    setting="engine",
    causes=("sampler-mismatch",),
    config={"temperature": 1.4},
    since="1.16.0",
)
def engine_reports_raw_logprobs(case: Case) -> Case:
    """The engine reports log-probabilities at temperature 1, and samples at 1.4."""

    def raw(trainer):
        from benchmarks.check.settings.tooling import sampled

        held = trainer.vllm_generation

        def generate(prompts, images, num_generations, profiler=None):
            replies, _ = sampled(held.model, prompts, trainer)
            logps = [_scored(held.model, p, r) for p, r in zip(prompts, replies, strict=True)]
            return prompts, replies, [[[value] for value in row] for row in logps], None

        held.generate = generate

    return case.then(raw)


@torch.no_grad()
def _scored(model, prompt, reply):
    logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(reply)[:, None])[:, 0].tolist()
