"""erl-trainer: each reply is tried again after a reflection."""

from common import COMMON, length_and_answer, told
from erl import ERLConfig, ERLTrainer


def with_feedback(prompts, completions, answer, **_):
    return [(reward, "try again") for reward in length_and_answer(completions, answer)]


told_apart = {**told(), "reward_funcs": with_feedback}
ERLTrainer(args=ERLConfig(**COMMON), **told_apart).train()
