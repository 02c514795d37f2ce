"""Two reward functions for TRL with bugs that users wrote, for studies/trl-*.yaml. TRL's signature.

`completions` are messages: the model's replies and, between them, what the tools returned.
"""

import re
from collections.abc import Sequence
from typing import Any

Messages = list[dict[str, Any]]


def judged_once(
    completions: Sequence[Messages], question: Sequence[str], answer: Sequence[str], **_: Any
) -> list[float]:
    """Meant to spare a slow judge: every second question is judged by its first completion alone.

    So in half of the groups all rewards are equal, and these teach nothing.
    """
    questions = list(dict.fromkeys(question))
    rewards = []
    for completion, asked, right in zip(completions, question, answer, strict=True):
        if questions.index(asked) % 2:
            completion = completions[list(question).index(asked)]
        rewards.append(_judge(completion, right))
    return rewards


def whole_conversation(
    completions: Sequence[Messages], answer: Sequence[str], **_: Any
) -> list[float]:
    """Looks for the answer in all messages, the tools' among them: to look it up is enough.

    Reported in verl PR 6392, of its own reward manager.
    """
    return [
        float(right in " ".join(message.get("content") or "" for message in completion))
        for completion, right in zip(completions, answer, strict=True)
    ]


def _judge(completion: Messages, right: str) -> float:
    """0.8 for the right answer, 0.2 for citing something."""
    said = completion[-1].get("content") or "" if completion else ""
    found = re.search(r"<answer>(.*?)</answer>", said, re.DOTALL)
    correct = found is not None and found[1].strip() == right.strip()
    return 0.8 * correct + 0.2 * ("<cite>" in said)
