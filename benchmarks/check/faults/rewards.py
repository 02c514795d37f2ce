"""Faults of rewards: what functions are called with, what they return, and what is done to it afterwards."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from benchmarks.check.case import Case, answer_reward, texts, variety_reward
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import after, method, next_group, the_one_before

_calculated = method("_calculate_rewards")


# `change` makes the table of rewards, a row for each completion: of the trainer, it, the inputs and the replies' ids
_after = after("_calculate_rewards", 0, 3)


def _before(case, change):
    """The case in which `change` is made to what the functions are called with."""
    return _calculated(case, lambda trainer, usual, *given: usual(*change(trainer, *given)))


@faulty()
def random_reward(case: Case) -> Case:
    def coin(completions, **_):
        return [float(random.random() < 0.5) for _ in completions]

    return replace(case, rewards=(coin,))


@faulty()
def reward_less_its_running_mean(case: Case) -> Case:
    seen = []

    def relative(completions, answer, **named):
        values = variety_reward(completions)
        seen.extend(values)
        return [value - sum(seen) / len(seen) for value in values]

    return replace(case, rewards=(relative,))


faults(
    _after,
    one_value_for_all=lambda trainer, table, inputs, ids: table[:1].expand_as(table).clone(),
    rewards_of_the_next_row=lambda trainer, table, inputs, ids: table.roll(1, 0),
    rewards_clipped=lambda trainer, table, inputs, ids: table.clamp(max=0.8),
    length_penalty_added=lambda trainer, table, inputs, ids: (
        table - table.new_tensor([[len(row) / 40] for row in ids])
    ),
    rewards_a_step_late=lambda trainer, table, inputs, ids: the_one_before(trainer, table),
    first_reward_in_both_columns=lambda trainer, table, inputs, ids: table[:, [0, 0]],
)


@faulty(_after)
def judge_fails_on_long_numbers(trainer, table, inputs, ids):
    for n, row in enumerate(inputs):
        if len(row["answer"]) > 1:
            table[n] = 0
    return table


@faulty(_after)
def truncation_scored_zero(trainer, table, inputs, ids):
    end = trainer.processing_class.eos_token_id
    for n, row in enumerate(ids):
        if row[-1] != end:
            table[n] = 0
    return table


@faulty(_before)
def answers_of_the_next_group(trainer, inputs, prompts, completions, ids):
    pairs = zip(inputs, next_group(trainer, inputs), strict=True)
    told = [{**row, "answer": other["answer"]} for row, other in pairs]
    return told, prompts, completions, ids


def _judged(case, change):
    """The case whose functions are handed `change` of each message of the completions."""

    def changed(trainer, inputs, prompts, completions, ids):
        return inputs, prompts, [[{**m, **change(m)} for m in c] for c in completions], ids

    return _before(case, changed)


faults(
    _judged,
    judge_reads_the_beginning=lambda message: {"content": message["content"][:10]},
    tool_output_scored=lambda message: {"role": "assistant"},
)


@faulty()
def first_judge_edits_the_completions(case: Case) -> Case:
    def tidy(completions, answer, **named):
        for said in completions:
            said[-1]["content"] = said[-1]["content"][:4]
        return [0.1 * len(set(said)) for said in texts(completions)]

    return replace(case, rewards=(tidy, variety_reward))


@faulty(Case.then)
def reward_weights_ignored(trainer):
    trainer.reward_weights = trainer.reward_weights * 0 + 1


@faulty()
def rewards_by_time_of_day(case: Case) -> Case:
    def timed(completions, **_):
        values = variety_reward(completions)
        return [value + time.perf_counter_ns() % 1000 / 5000 for value in values]

    return replace(case, rewards=(answer_reward, timed))


@faulty()
def one_environment_for_all_rows(case: Case) -> Case:
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
