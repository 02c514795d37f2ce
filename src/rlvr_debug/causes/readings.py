"""What several causes read from a log: its groups, its texts, the weight of the KL in the loss, and how far apart sampler and trainer are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Passage, Reading, correlation, graded, late
from rlvr_debug.logs.log import Array, Log

Groups: TypeAlias = "pd.api.typing.DataFrameGroupBy[Any, Any]"

DEAD = {MILD: 0.5, LARGE: 0.75, STOPS: 0.9}
SAME = 1e-6
_FEWEST = 4  # groups that have any spread
_CENTRED = 0.05  # of the largest advantage, as group-means has it
_NEXT_TO_0 = 1e-12


def groups_of(log: Log) -> Groups | None:
    """Of the completions, those of one prompt in one step; only groups of at least two."""
    table = log.completions
    if table.empty:
        return None
    sizes = table.groupby(["step", "prompt"])["prompt"].transform("size")
    kept = table[sizes > 1]
    return kept.groupby(["step", "prompt"]) if len(kept) else None


def group_where(groups: Groups, value: pd.Series) -> tuple[Passage, ...]:
    """Return the rollouts of the group with the largest value; none where no group has one. value: by (step, prompt)."""
    known = value[value.notna()]
    if known.empty:
        return ()
    rows = groups.groups[known.idxmax()]
    return tuple(Passage(int(row)) for row in rows)


def dead(log: Log, groups: Groups) -> pd.Series:
    """Return whether all rewards of the group are equal, by (step, prompt)."""
    scale = float(log.completions["reward"].abs().max()) or 1.0
    return (groups["reward"].max() - groups["reward"].min()) <= SAME * scale


def of_early_groups(dead: pd.Series) -> float:
    """The same of groups, one value each, by (step, prompt): those of the first third of the steps."""
    steps = dead.index.get_level_values("step")
    known = np.unique(steps.to_numpy())
    early = steps <= known[max(0, known.size // 3 - 1)]
    return float(min(dead[early].mean(), dead.mean()))


def at_least(values: pd.Series) -> float:
    """Return the mean, less what few groups may be off by: the lower bound of Wilson's interval at one standard error."""
    n, p = len(values), float(values.mean())
    root = np.sqrt(p * (1 - p) / n + 1 / (4 * n * n))
    return float((p + 1 / (2 * n) - root) / (1 + 1 / n))


@dataclass(frozen=True)
class Follows:
    """Over the groups whose rewards differ.

    share: of the advantages' variance that the rewards of the same rollouts explain. centred: whether groups sum to
    0. dropped: share of rollouts below their group's mean whose advantage is exactly 0. factors: what a reward's
    distance from the mean is multiplied by, [groups]; spreads: the deviation of each group's rewards, [groups].
    """

    share: float
    centred: bool
    dropped: float
    factors: Array
    spreads: Array


def follows(log: Log) -> Follows | None:
    """Return it, None where too few groups differ or rewards have several parts whose weights no log has."""
    groups = groups_of(log)
    if groups is None or not {"reward", "advantage"} <= set(log.completions):
        return None
    if sum(str(name).startswith("part/") for name in log.completions) > 1 and not log.own_reward:
        return None
    scale = float(log.completions["reward"].abs().max()) or 1.0
    found = [_group(group, scale) for _, group in groups]
    kept = [each for each in found if each is not None]
    if len(kept) < _FEWEST:
        return None
    scaled = [(r / r.std(), (a - a.mean()) / max(a.std(), _NEXT_TO_0)) for r, a, _ in kept]
    along = correlation(*(np.concatenate(each) for each in zip(*scaled, strict=True)))
    mean = float(np.median([abs(a.mean()) for _, a, _ in kept]))
    largest = float(np.median([np.abs(a).max() for _, a, _ in kept]))
    below = np.concatenate([a[r < 0] for r, a, _ in kept])
    return Follows(
        max(0.0, along) ** 2,
        mean <= _CENTRED * max(largest, _NEXT_TO_0),
        float((below == 0).mean()),
        np.array([(r * a).sum() / (r * r).sum() for r, a, _ in kept]),
        np.array([spread for _, _, spread in kept]),
    )


def _group(group: pd.DataFrame, scale: float) -> tuple[Array, Array, float] | None:
    """Return rewards less their mean, advantages, and the rewards' deviation; None without a spread."""
    rewards = group["reward"].to_numpy(dtype=np.float64)
    advantages = group["advantage"].to_numpy(dtype=np.float64)
    both = np.isfinite(rewards) & np.isfinite(advantages)
    rewards, advantages = rewards[both], advantages[both]
    if rewards.size < 2 or np.ptp(rewards) <= SAME * scale:
        return None
    return rewards - rewards.mean(), advantages, float(rewards.std(ddof=1))


# --- texts of prompts and completions, whatever the model


# what begins a turn and ends it, and who speaks in the last one of a prompt: templates of Qwen, Llama 3 and Gemma
_TURNS = (
    ("<|im_start|>", "<|im_end|>", "assistant"),
    ("<|start_header_id|>", "<|eot_id|>", "assistant"),
    ("<start_of_turn>", "<end_of_turn>", "model"),
)
# what holds an answer, and what a last line has that is one
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ANSWERS = re.compile(r"####|\\boxed|\banswer\b.*\S")
# what begins a tool call in a model's own words: Qwen and Hermes, Mistral, Llama
_CALLS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")


def messages(completion: Any) -> list[dict[str, Any]] | None:
    """Return a conversation's messages, None of what is no list of messages."""
    if not isinstance(completion, str) or not completion.startswith("["):
        return None
    try:
        found = json.loads(completion)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        return None
    return found


def ends_in_call(completion: Any) -> bool | None:
    """Return whether the last message asks for a tool, None of what is no conversation."""
    found = messages(completion)
    if found is None:
        return None
    last = found[-1] if found else {}
    if last.get("role") in ("tool", "user", "ipython"):
        return False
    text = last.get("content")
    written = isinstance(text, str) and any(begin in text for begin in _CALLS)
    return bool(last.get("tool_calls")) or written


def tool_results(log: Log) -> dict[int, list[str]]:
    """Return what tools said in each conversation that has any, by its row in Log.completions."""
    if "completion" not in log.completions:
        return {}
    found = {
        row: [str(m.get("content") or "") for m in told if m.get("role") in ("tool", "ipython")]
        for row, completion in zip(
            log.completions.index.to_numpy().tolist(), log.completions["completion"], strict=True
        )
        if (told := messages(completion)) is not None
    }
    return {row: said for row, said in found.items() if said}


def final_answer(completion: Any) -> str | None:
    """Return what a reply gives as its answer: what is tagged so, or its last line where that is one; None of others.

    A line stands for its form, too: a judge may ask for one.
    """
    found = messages(completion)
    if found is not None:
        spoken = [m for m in found if m.get("role") in ("assistant", "model")]
        completion = spoken[-1].get("content") if spoken else None
    if not isinstance(completion, str):
        return None
    if tagged := _TAGGED.findall(completion):
        return str(tagged[-1]).strip().lower()
    last = completion.strip().rpartition("\n")[2].strip().lower()
    return last if _ANSWERS.search(last) else None


def prompt_is_cut(prompt: Any) -> str | None:
    """Return "" for a whole prompt, "beginning" or "end" for what it lost; None where no template is known."""
    if not isinstance(prompt, str):
        return None
    for begin, end, speaker in _TURNS:
        if begin not in prompt and end not in prompt:
            continue
        if not prompt.rpartition(begin)[2].lstrip().startswith(speaker) or begin not in prompt:
            return "end"
        # each turn is closed but the last one, which is the model's to write
        return "" if prompt.count(begin) == prompt.count(end) + 1 else "beginning"
    return None


# --- settings


def beyond(log: Log, argument: str, bounds: Mapping[int, float]) -> Reading | None:
    """Return how far a setting lies beyond these bounds, None where it is not known."""
    value = log.argument(argument)
    if value is None:
        return None
    strength = graded(value, bounds)
    return Reading(strength, {"value": value}, min(1.0, value / (10 * max(bounds.values()))))


# --- loss and KL: with one policy in a batch its own term is 0 on average, and the rest is the weight times the KL


# weights of the KL that somebody means: TRL's default is 0, DeepSeekMath's 0.04, verl's examples have 0.001
ORDINARY = 0.3
_SMALLEST = 1e-7  # nats: below, the ratio is one of roundings
_ALIKE = 2.5  # ratios within this factor of their median agree
_AGREE = 0.6  # of the rows
_FIRST_NORM = 10.0
_NOT_MEANT = 3.0  # a weight that nobody asks for where the policy moves
MOVES = 5e-3  # nats: a policy that the KL does not hold
# nats per token that no policy has over what it samples: the estimate is the mean of exp(x) - x - 1, and its exp(x) is 1
NOT_ITS_OWN = 20.0


def rows_of(log: Log) -> tuple[Array, Array]:
    """Return KL and loss of the rows that have both, and a KL that is more than rounding."""
    both = log.together("kl", "loss")
    both = both[np.abs(both[:, 0]) > _SMALLEST]
    return both[:, 0], both[:, 1]


def first_kl(log: Log) -> float | None:
    """Return the KL of step 1, None where that was not logged."""
    if "kl" not in log.steps or not len(log.steps) or log.steps.index[0] > 1:
        return None
    first = float(log.steps["kl"].iloc[0])
    return first if np.isfinite(first) else None


def kl_weight(log: Log) -> float | None:
    """Return the weight that the KL has in the loss: as it is set, unless rows agree on one below 0; None where neither is known."""
    given, shown = log.argument("beta"), shown_weight(log)
    return shown if given is None or (shown is not None and shown < 0) else given


def shown_weight(log: Log) -> float | None:
    """Return the loss over the KL, None where rows do not agree on one."""
    kl, loss = rows_of(log)
    if len(kl) < 6:
        return None
    ratios = (loss / kl)[len(kl) // 3 :]
    middle = float(np.median(ratios))
    if middle == 0:
        return None
    alike = (ratios / middle >= 1 / _ALIKE) & (ratios / middle <= _ALIKE)
    return middle if alike.mean() >= _AGREE else None


def loss_is_large(log: Log, weight: float) -> bool:
    """Return whether all of the loss is too large, and not the weight of the KL in it.

    The gradient is large in the first row, where policy and reference are one and the KL adds nothing, and the policy
    moves under a weight that would hold it.
    """
    kl, _ = rows_of(log)
    norms = log.series("grad_norm")
    at_first = norms.size > 0 and float(norms[0]) >= _FIRST_NORM
    return at_first and weight > _NOT_MEANT and MOVES <= late(kl) < 1


# --- the distance of sampler and trainer, by whatever a log has of it


_OTHER_CONTEXT = {LARGE: 0.3}
_ELSEWHERE = {LARGE: 0.1}
_ONE = 0.03
_BLIND = 1.5  # nats per token

# what a log may have of the distance, the most telling first: quantity, name, its value where both agree, bound,
# and whether it may be off to either side
_DISTANCES = (
    ("sampler_gap", "mean |difference| of log-probabilities, nats", 0, 0.05, False),
    ("sampler_prob_gap", "mean |difference| of probabilities", 0, 0.01, False),
    ("sampler_factor", "mean exp(|difference|), less 1", 1, 0.05, False),
    ("sampler_kl", "KL of sampler and trainer, nats", 0, 0.05, True),
    ("sampler_ratio", "mean ratio of probabilities, less 1", 1, 0.1, True),
    ("sampler_pearson", "1 less the correlation of probabilities", 1, 0.05, True),
)


@dataclass(frozen=True)
class Gap:
    """The distance of sampler and trainer by row, what it is called, and the bound that rounding stays below.

    quantity: what it was read from.
    """

    quantity: str
    name: str
    values: Array
    bound: float


def gap(log: Log) -> Gap | None:
    for quantity, name, agreement, bound, both_sides in _DISTANCES:
        if (values := log.series(quantity) - agreement).size:
            return Gap(quantity, name, np.abs(values) if both_sides else values, bound)
    return None


def other_context(log: Log) -> Reading | None:
    """How far the trainer is from who sampled before anything was trained: by the gap, or by what entropy allows.

    Tokens that were sampled from a policy have, on average, its negative entropy as log-probability.
    """
    gaps = log.series("sampler_gap")
    if gaps.size:
        first = float(gaps[0])
    else:
        both = log.together("logprob", "entropy")
        if not len(both):
            return None
        first = -float(both[0].sum())
    ratios = log.series("sampler_ratio")
    bounds = _OTHER_CONTEXT
    if ratios.size:
        # two distributions over the same tokens have a mean ratio of 1, however far apart, and one that was cut above
        # it; below 1 it is where the trainer has its mass elsewhere
        elsewhere = float(ratios[: max(1, ratios.size // 3)].mean()) < 1 - _ONE
        bounds = _ELSEWHERE if elsewhere else {}
    return Reading(graded(first, bounds), {"first": first}, min(0.8, max(0.0, first) / 4))


def is_blind(found: Reading) -> bool:
    """Return whether replies are as unlikely as without the question: more than another sequence of it would make them."""
    return float(found.values["first"]) >= _BLIND
