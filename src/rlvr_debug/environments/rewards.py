"""Reward parts as pure functions of strings and sets; each in [0, 1].

Exact match and F1 follow the official MuSiQue evaluator: answers are lower-cased and lose
punctuation, articles and extra white space; the best value over the answer and its aliases counts.
"""

import re
import string
from collections import Counter
from collections.abc import Collection, Sequence
from fractions import Fraction

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"-?(?:\d*\.)?\d+(?:/\d+)?")
_SPELLINGS = (
    (re.compile("\N{MINUS SIGN}"), "-"),
    (re.compile(r"-\\?[$€£¥]"), "-"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    # after a digit it would be a mixed number, which is not one number here
    (re.compile(r"(?<![\d\s])\s*\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}"), r"\1/\2"),
)


def normalize_answer(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    normalized = normalize_answer(prediction)
    return float(any(normalized == normalize_answer(answer) for answer in answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    return max(
        _f1(normalize_answer(prediction).split(), normalize_answer(a).split()) for a in answers
    )


def _f1(predicted: Collection[object], expected: Collection[object]) -> float:
    if not predicted or not expected:
        return float(predicted == expected)
    common = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * common / (len(predicted) + len(expected))


def recall(found: Collection[int], relevant: Collection[int]) -> float:
    return len(set(found) & set(relevant)) / len(set(relevant))


def precision(found: Collection[int], relevant: Collection[int]) -> float:
    return len(set(found) & set(relevant)) / len(set(found)) if found else 0.0


def citation_f1(cited: Collection[object], supporting: Collection[object]) -> float:
    """Harmonic mean of the precision and recall of the cited paragraphs; order does not matter."""
    return _f1(set(cited), set(supporting))


def numbers_equal(prediction: str, answer: str) -> float:
    """1 if both hold one number and the numbers are equal as exact fractions.

    Words, units, currency and percent signs around it do not matter ("$1,000 a day" is 1000, "50%" is
    50); `1/2` and `\\frac{1}{2}` are numbers, and nothing is computed.
    """
    predicted, expected = _number(prediction), _number(answer)
    return float(predicted is not None and predicted == expected)


def _number(text: str) -> Fraction | None:
    for pattern, plain in _SPELLINGS:
        text = pattern.sub(plain, text)
    found = _NUMBER.findall(text)
    if len(found) != 1 or len(found[0]) > 64:
        return None
    try:
        return Fraction(found[0])
    except (ValueError, ZeroDivisionError):  # "1.5/2", "1/0"
        return None
