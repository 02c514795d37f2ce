"""Faults of rewards: what functions are called with, what they return, and what is done to it afterwards."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from benchmarks.check.case import Case, answer_reward, texts, variety_reward
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import method

_calculated = method("_calculate_rewards")


def _after(case, change):
    """The case in which `change` is made to the table of rewards, a row for each completion."""

    def after(trainer, usual, inputs, prompts, completions, ids):
        table = usual(inputs, prompts, completions, ids)
        return change(trainer, table, inputs, ids)

    return _calculated(case, after)


def _before(case, change):
    """The case in which `change` is made to what the functions are called with."""
    return _calculated(case, lambda trainer, usual, *given: usual(*change(trainer, *given)))


@faulty()
def random_reward(case: Case) -> Case:
    """The reward is drawn at random."""

    def coin(completions, **_):
        return [float(random.random() < 0.5) for _ in completions]

    return replace(case, rewards=(coin,))


@faulty()
def reward_less_its_running_mean(case: Case) -> Case:
    """The function keeps a running mean of all that it saw, so that the same completion has another reward later."""
    seen = []

    def relative(completions, answer, **named):
        values = variety_reward(completions)
        seen.extend(values)
        return [value - sum(seen) / len(seen) for value in values]

    return replace(case, rewards=(relative,))


@faulty(_after)
def one_value_for_all(trainer, table, inputs, ids):
    """One value of the reward function is broadcast to all completions."""
    return table[:1].expand_as(table).clone()


@faulty(_after)
def judge_fails_on_long_numbers(trainer, table, inputs, ids):
    """The verifier fails where the answer has more than one digit, and its error is a reward of 0."""
    for n, row in enumerate(inputs):
        if len(row["answer"]) > 1:
            table[n] = 0
    return table


@faulty(_after)
def truncation_scored_zero(trainer, table, inputs, ids):
    """Replies that were cut have a reward of 0."""
    end = trainer.processing_class.eos_token_id
    for n, row in enumerate(ids):
        if row[-1] != end:
            table[n] = 0
    return table


@faulty(_after)
def rewards_of_the_next_row(trainer, table, inputs, ids):
    """Rewards come back in another order than the completions went out."""
    return table.roll(1, 0)


@faulty(_after)
def rewards_clipped(trainer, table, inputs, ids):
    """Rewards are cut to at most 0.8, which nobody asked for."""
    return table.clamp(max=0.8)


@faulty(_after)
def length_penalty_added(trainer, table, inputs, ids):
    """A penalty of the length is taken off all rewards afterwards."""
    return table - table.new_tensor([[len(row) / 40] for row in ids])


@faulty(_after)
def first_reward_in_both_columns(trainer, table, inputs, ids):
    """The second function's column holds the first one's rewards."""
    return table[:, [0, 0]]


@faulty(_after)
def rewards_a_step_late(trainer, table, inputs, ids):
    """Rewards are of the batch before: they are asked for in the background, and taken when the next are asked for."""
    before, trainer.before = getattr(trainer, "before", table), table
    return before


@faulty(_before)
def answers_of_the_next_group(trainer, inputs, prompts, completions, ids):
    """The functions are told the answers of the next prompts."""
    size = trainer.num_generations
    others = [*inputs[size:], *inputs[:size]]
    told = [{**row, "answer": o["answer"]} for row, o in zip(inputs, others, strict=True)]
    return told, prompts, completions, ids


@faulty(_before)
def judge_reads_the_beginning(trainer, inputs, prompts, completions, ids):
    """The functions are handed the first ten characters of each completion."""
    said = [[{**m, "content": m["content"][:10]} for m in c] for c in completions]
    return inputs, prompts, said, ids


@faulty()
def first_judge_edits_the_completions(case: Case) -> Case:
    """The first function tidies up the completions in place, and the second judges what is left."""

    def tidy(completions, answer, **named):
        for said in completions:
            said[-1]["content"] = said[-1]["content"][:4]
        return [0.1 * len(set(said)) for said in texts(completions)]

    return replace(case, rewards=(tidy, variety_reward))


@faulty(_before)
def tool_output_scored(trainer, inputs, prompts, completions, ids):
    """What tools returned is judged as the model's own words."""
    said = [[{**m, "role": "assistant"} for m in c] for c in completions]
    return inputs, prompts, said, ids


@faulty(Case.then)
def reward_weights_ignored(trainer):
    """Rewards were to be weighted 1 to 0.1, and all weigh the same."""
    trainer.reward_weights = trainer.reward_weights * 0 + 1


@faulty()
def rewards_by_time_of_day(case: Case) -> Case:
    """A judge that is slow gives less: its time, measured in nanoseconds, is part of the reward."""

    def timed(completions, **_):
        values = variety_reward(completions)
        return [value + time.perf_counter_ns() % 1000 / 5000 for value in values]

    return replace(case, rewards=(answer_reward, timed))


@faulty()
def one_environment_for_all_rows(case: Case) -> Case:
    """An environment is made once, so that all rows are scored by the one that was reset last."""

    class Answers:
        def reset(self, answer, **_):
            self.answer = answer
            return f" The answer is not {answer}1."

    def right(completions, environments, **_):
        pairs = zip(texts(completions), environments, strict=True)
        return [float(each.answer[0] in said) for said, each in pairs]

    one = Answers()
    made = replace(case, rewards=(right, variety_reward))
    return made.given(environment_factory=lambda: one)
