"""A plug-in of ms-swift: the reward of the other scripts."""

from common import length_and_answer
from swift.rewards import ORM, orms


class LengthAndAnswer(ORM):
    def __call__(self, completions, answer, **_):
        return length_and_answer(completions, answer)


orms["length_and_answer"] = LengthAndAnswer
