"""Faults of rewards: what functions are called with, what they return, and what is done to it afterwards."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.check.case import Case, answer_reward, texts, variety_reward
from benchmarks.check.faults.fault import faulty

_CAUSES = ("reward-signal",)


def _after(case, change):
    """The case in which `change` is made to the table of rewards, a row for each completion."""

    class Trainer(case.trainer):
        def _calculate_rewards(self, inputs, prompts, completions, ids):
            table = super()._calculate_rewards(inputs, prompts, completions, ids)
            return change(self, table, inputs, ids)

    return replace(case, trainer=Trainer)


def _before(case, change):
    """The case in which `change` is made to what the functions are called with."""

    class Trainer(case.trainer):
        def _calculate_rewards(self, inputs, prompts, completions, ids):
            return super()._calculate_rewards(*change(self, inputs, prompts, completions, ids))

    return replace(case, trainer=Trainer)


@faulty("rewards", origin="library", source="arXiv 2506.10947", causes=_CAUSES)
def random_reward(case: Case) -> Case:
    """The reward is drawn at random."""

    def coin(completions, **_):
        return [float(random.random() < 0.5) for _ in completions]

    return replace(case, rewards=(coin,))


@faulty("rewards", origin="own", causes=_CAUSES)
def reward_less_its_running_mean(case: Case) -> Case:
    """The function keeps a running mean of all that it saw, so that the same completion has another reward later."""
    seen = []

    def relative(completions, answer, **named):
        values = variety_reward(completions)
        seen.extend(values)
        return [value - sum(seen) / len(seen) for value in values]

    return replace(case, rewards=(relative,))


@faulty("rewards", origin="benchmark", source="TRL 6533", causes=("group-construction", *_CAUSES))
def one_value_for_all(case: Case) -> Case:
    """One value of the reward function is broadcast to all completions."""
    return _after(case, lambda _, table, *__: table[:1].expand_as(table).clone())


@faulty("rewards", origin="benchmark", source="NVIDIA-NeMo/RL PR 2207", causes=_CAUSES)
def judge_fails_on_long_numbers(case: Case) -> Case:
    """The verifier fails where the answer has more than one digit, and its error is a reward of 0."""

    def failed(trainer, table, inputs, ids):
        for n, row in enumerate(inputs):
            if len(row["answer"]) > 1:
                table[n] = 0
        return table

    return _after(case, failed)


@faulty("rewards", origin="known", source="UniRL PR 19", causes=("context-truncation", *_CAUSES))
def truncation_scored_zero(case: Case) -> Case:
    """Replies that were cut have a reward of 0."""

    def zeroed(trainer, table, inputs, ids):
        end = trainer.processing_class.eos_token_id
        for n, row in enumerate(ids):
            if row[-1] != end:
                table[n] = 0
        return table

    return _after(case, zeroed)


@faulty("rewards", origin="own", causes=("group-construction", *_CAUSES))
def rewards_of_the_next_row(case: Case) -> Case:
    """Rewards come back in another order than the completions went out."""
    return _after(case, lambda _, table, *__: table.roll(1, 0))


@faulty("rewards", origin="own", causes=_CAUSES)
def rewards_clipped(case: Case) -> Case:
    """Rewards are cut to at most 0.8, which nobody asked for."""
    return _after(case, lambda _, table, *__: table.clamp(max=0.8))


@faulty("rewards", origin="own", causes=_CAUSES)
def length_penalty_added(case: Case) -> Case:
    """A penalty of the length is taken off all rewards afterwards."""

    def shorter(trainer, table, inputs, ids):
        return table - table.new_tensor([[len(row) / 40] for row in ids])

    return _after(case, shorter)


@faulty("rewards", origin="own", causes=_CAUSES)
def first_reward_in_both_columns(case: Case) -> Case:
    """The second function's column holds the first one's rewards."""
    return _after(case, lambda _, table, *__: table[:, [0, 0]])


@faulty("rewards", origin="own", causes=_CAUSES)
def rewards_a_step_late(case: Case) -> Case:
    """Rewards are of the batch before: they are asked for in the background, and taken when the next are asked for."""

    def late(trainer, table, *_):
        before, trainer.before = getattr(trainer, "before", table), table
        return before

    return _after(case, late)


@faulty("rewards", origin="own", causes=_CAUSES)
def answers_of_the_next_group(case: Case) -> Case:
    """The functions are told the answers of the next prompts."""

    def rolled(trainer, inputs, prompts, completions, ids):
        size = trainer.num_generations
        others = [*inputs[size:], *inputs[:size]]
        told = [{**row, "answer": o["answer"]} for row, o in zip(inputs, others, strict=True)]
        return told, prompts, completions, ids

    return _before(case, rolled)


@faulty("rewards", origin="own", causes=_CAUSES)
def judge_reads_the_beginning(case: Case) -> Case:
    """The functions are handed the first ten characters of each completion."""

    def cut(trainer, inputs, prompts, completions, ids):
        said = [[{**m, "content": m["content"][:10]} for m in c] for c in completions]
        return inputs, prompts, said, ids

    return _before(case, cut)


@faulty("rewards", origin="own", causes=_CAUSES)
def first_judge_edits_the_completions(case: Case) -> Case:
    """The first function tidies up the completions in place, and the second judges what is left."""

    def tidy(completions, answer, **named):
        for said in completions:
            said[-1]["content"] = said[-1]["content"][:4]
        return [0.1 * len(set(said)) for said in texts(completions)]

    return replace(case, rewards=(tidy, variety_reward))


@faulty(
    "rewards",
    origin="library",
    source="verl PR 6392",
    causes=_CAUSES,
    setting="tools",
    since="1.0.0",
)
def tool_output_scored(case: Case) -> Case:
    """What tools returned is judged as the model's own words."""

    def as_own(trainer, inputs, prompts, completions, ids):
        said = [[{**m, "role": "assistant"} for m in c] for c in completions]
        return inputs, prompts, said, ids

    return _before(case, as_own)


@faulty(
    "rewards",
    "advantages",
    origin="own",
    causes=_CAUSES,
    config={"reward_weights": [1.0, 0.1]},
    why="each reward is right; their weighted sum, from which advantages are made, is not",
)
def reward_weights_ignored(case: Case) -> Case:
    """Rewards were to be weighted 1 to 0.1, and all weigh the same."""

    def alike(trainer):
        trainer.reward_weights = trainer.reward_weights * 0 + 1

    return case.then(alike)


@faulty("rewards", origin="own", causes=_CAUSES)
def rewards_by_time_of_day(case: Case) -> Case:
    """A judge that is slow gives less: its time, measured in nanoseconds, is part of the reward."""

    def timed(completions, **_):
        import time

        return [
            value + time.perf_counter_ns() % 1000 / 5000 for value in variety_reward(completions)
        ]

    return replace(case, rewards=(answer_reward, timed))
