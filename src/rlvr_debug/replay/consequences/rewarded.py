"""What the rewards of a group leave to learn from. Axes: P groups, G rollouts of a group, K reward functions."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rlvr_debug.replay.finding import Consequence, seen
from rlvr_debug.replay.record import Generation, Record
from rlvr_debug.replay.rollouts import alike_groups

_STD = 0.1
_ERRORS = 1.64  # below by more than chance in one of twenty
_SMALL = 0.05
_SHARE = 0.5
_GROUPS = 4


def contrast(record: Record) -> Consequence | None:
    """Measure how far rewards differ within groups; None where no rewards were recorded."""
    found = [rewards for _, rewards in _grouped(record)]
    if not found:
        return None
    rewards = torch.cat(found)
    spread, scale = _spread(rewards), _scale(rewards)
    within = float(spread.mean())
    error = float(spread.std() / len(spread) ** 0.5) if len(spread) > 1 else 0.0
    dead = int((rewards == rewards[:, :1]).all(1).sum())
    count, alike = len(rewards), 0
    if record.settings.group_size > 1:
        alike = sum(sum(alike_groups(each, record.settings)) for each, _ in _grouped(record))
    measured = {
        "reward": float(rewards.mean()),
        "std_within_groups": within,
        "standard_error": error,
        "std_of_all": float(rewards.flatten().std()) if rewards.numel() > 1 else 0.0,
        "share_of_dead_groups": dead / count,
        "share_of_groups_of_one_rollout_repeated": alike / count,
    }
    said = (
        f"rewards differ by {within:.2g} within groups (standard deviation), and in {dead} of {count} groups not at "
        "all: little is learned from them"
    )
    if alike >= _SHARE * count:
        said += f"; in {alike} groups all rollouts are the same, token by token"
    said += "".join(f"; {name} gives each completion {value:g}" for name, value in constant(record))
    return Consequence("contrast", measured, within + _ERRORS * error >= _STD * scale > 0, said)


def constant(record: Record) -> Iterator[tuple[str, float]]:
    """Yield name and value of each reward function that gives all completions the same reward."""
    if not (parts := [seen(generation.rewards) for generation, _ in _grouped(record)]):
        return
    rewards, names = torch.cat(parts), _function_names(record)
    for number, values in enumerate(rewards.T):
        if len(values) > 1 and bool((values == values[0]).all()):
            yield f"the reward function {names.get(number, str(number + 1))}", float(values[0])


def of_prompts(record: Record) -> Consequence | None:
    """Measure which reward functions give all completions of a prompt one value; None below four groups that differ."""
    size = record.settings.group_size
    parts = []
    for generation, _ in _grouped(record):
        rewards = seen(generation.rewards)
        by_group = rewards.double().view(-1, size, rewards.shape[1])
        alike = torch.tensor(alike_groups(generation, record.settings)).bool()
        parts.append(by_group[~alike] if len(alike) == len(by_group) else by_group)
    rewards = torch.cat(parts) if parts else torch.zeros(0, size, 1)
    if size < 2 or len(rewards) < _GROUPS:
        return None
    within = (rewards == rewards[:, :1]).all(1).all(0)  # [K]
    between = (rewards[:, 0] != rewards[:1, 0]).any(0)
    names = _function_names(record)
    wrong = [names.get(n, str(n + 1)) for n in (within & between).nonzero()[:, 0].tolist()]
    measured = {"groups": len(rewards), "functions": rewards.shape[2], "of_prompts": len(wrong)}
    said = (
        f"the reward function {', '.join(wrong)} gives all completions of a prompt the same reward, in each of "
        f"{len(rewards)} groups, and another to other prompts"
    )
    return Consequence("rewards of prompts", measured, not wrong, said)


def nearly_equal(record: Record) -> Consequence | None:
    """Measure the weight of groups whose rewards hardly differ; None without rewards, advantages and masks."""
    weights, spreads = [], []
    scale = _scale(torch.cat([r for _, r in _grouped(record)] or [torch.zeros(0, 1)]))
    for generation, rewards in _grouped(record):
        batch = generation.batch
        if batch is None or not batch.loss_mask.numel() or not batch.advantages.numel():
            continue
        gains = batch.advantages.abs().double()
        tokens = batch.loss_mask.double()
        by_row = gains * tokens.sum(1) if gains.ndim == 1 else (gains * tokens).sum(1)
        weights.append(by_row.view(rewards.shape).sum(1))
        spreads.append(_spread(rewards))
    if not weights:
        return None
    weight, spread = torch.cat(weights), torch.cat(spreads)
    small = spread < _SMALL * scale
    total = float(weight.sum()) or 1.0
    share = float(weight[small].sum()) / total
    error = float((weight * (small.double() - share)).norm()) / total
    measured = {
        "gradient_share_of_small_spread": share,
        "standard_error": error,
        "groups_of_small_spread": float(small.double().mean()),
        "largest_advantage": max(
            float(g.batch.advantages.abs().max())
            for g, _ in _grouped(record)
            if g.batch is not None and g.batch.advantages.numel()
        ),
    }
    said = f"groups whose rewards hardly differ have {share:.0%} of the gradient's weight"
    return Consequence("nearly equal rewards", measured, share - _ERRORS * error < _SHARE, said)


def noise(record: Record) -> Consequence | None:
    """Measure the noise of the reward function that has most of it; None where none was called again."""
    if "rewards" in record.own.declared:
        return None  # what a state changes is no noise
    size, by_name = record.settings.group_size, dict[str, list[Tensor]]()
    for call in (each for g in record.generations for each in g.reward_calls):
        if call.again is not None and size > 1 and not len(call.returned) % size:
            both = torch.tensor([call.returned, call.again]).double()
            by_name.setdefault(call.name, []).append(both.view(2, -1, size))
    found = []
    for name, calls in by_name.items():
        rewards, again = torch.cat(calls, 1)
        off = rewards - rewards.nanmean(1, keepdim=True)
        one = float((again - rewards).square().nanmean() / 2) ** 0.5
        found.append((one, float(off.square().nanmean() * size / (size - 1)) ** 0.5, name))
    if not found:
        return None
    one, within, name = max(found, key=lambda each: each[0] / max(each[1], 1e-300))
    said = (
        f"the rewards of {name} differ by {one:.2g} (standard deviation) where it is called again, and by {within:.2g} "
        "within groups"
    )
    measured = {"noise": one, "std_within_groups": within}
    return Consequence("noise of rewards", measured, 2 * one**2 <= within**2, said)


def _function_names(record: Record) -> dict[int, str]:
    """Return the reward functions' names by their places."""
    return {call.index: call.name for each in record.generations for call in each.reward_calls}


def _grouped(record: Record) -> Iterator[tuple[Generation, Tensor]]:
    """Yield each generation with its rewards, weighted and summed: [P, G]."""
    size, told = record.settings.group_size, record.settings.reward_weights
    for generation in record.generations:
        rewards = generation.rewards
        if rewards is None or not len(rewards) or len(rewards) % size:
            continue
        functions = rewards.shape[1]
        weights = torch.tensor(told) if len(told) == functions else torch.ones(functions)
        summed = (rewards.nan_to_num(nan=0.0).double() * weights.double()).sum(1)
        yield generation, summed.view(-1, size)


def _spread(rewards: Tensor) -> Tensor:
    """Return the groups' standard deviations, [P]: 0 for a group of one."""
    return rewards.std(1) if rewards.shape[1] > 1 else torch.zeros(len(rewards)).double()


def _scale(rewards: Tensor) -> float:
    """Return what rewards are measured in: 1 where they are in [0, 1], else their range."""
    if not rewards.numel():
        return 1.0
    low, high = float(rewards.min()), float(rewards.max())
    return 1.0 if low >= 0 and high <= 1 else high - low
