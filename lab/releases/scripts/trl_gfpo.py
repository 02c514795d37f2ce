"""TRL's GFPO: of each group the two shortest completions are trained on."""

from common import COMMON, texts, told
from trl.experimental.gfpo import GFPOConfig, GFPOTrainer


def shortest(group_completions, group_rewards, **_):
    return [[-float(len(text)) for text in texts(group)] for group in group_completions]


args = GFPOConfig(**COMMON, num_remains_in_group=2)
GFPOTrainer(args=args, group_filter_func=shortest, **told()).train()
