"""How each library is called: advantages of rewards, [B, K], and a group's size; a loss of log-probabilities, [b, C]."""

from importlib import import_module
from importlib.util import find_spec
from runpy import run_path
from types import SimpleNamespace

import torch


def of(module, name):
    return lambda *given, **named: getattr(import_module(module), name)(*given, **named)


def multireward(rewards, size):
    weights = [1.0] * rewards.shape[1]
    found = of("multireward_grpo.advantage", "compute_advantage_batch")
    return found(rewards.view(-1, size, rewards.shape[1]).numpy(), weights, "an").reshape(-1)


def mean_of(values, mask):
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def by_sequence(module):
    """Return a loss of one log-probability for each sequence, the mean of its tokens'."""

    def loss(logps, old, reference, advantages, mask, beta):
        own, before = mean_of(logps, mask), mean_of(old, mask)
        return of(module, "grpo_loss")(own, before, advantages, 0.2, beta)[0]

    return loss


def by_group(module, name):
    """Return advantages of a function of one group's rewards."""

    def advantages(rewards, size):
        groups = rewards.nansum(1).view(-1, size)
        return torch.cat([torch.as_tensor(of(module, name)(group)) for group in groups])

    return advantages


def group_ids(rewards, size):
    return torch.arange(len(rewards)) // size


def polgrad_advantages(rewards, size):
    how = of("polgrad.advantages", "GroupNormConfig")()
    return of("polgrad.advantages", "grpo_advantages")(
        rewards.nansum(1), group_ids(rewards, size), how
    )


def polgrad_loss(logps, old, reference, advantages, mask, beta):
    found = import_module("polgrad.losses")
    mean, k3 = found.Aggregation.SEQ_MEAN_TOKEN_MEAN, import_module("polgrad.kl").KLEstimator.K3
    how = found.PolicyLossConfig(
        found.RatioKind.TOKEN,
        found.SurrogateKind.PG_CLIP,
        found.ClipConfig(0.2, 0.2),
        mean,
        kl=found.KLLossConfig(k3, beta),
    )
    given = {"logprobs": logps, "old_logprobs": old, "ref_logprobs": reference}
    return found.policy_loss(how, **given, advantages=advantages, response_mask=mask.bool()).loss


def stateset_advantages(rewards, size):
    found = import_module("stateset_agents.training.objectives")
    return found.compute_advantages(
        rewards.nansum(1), group_ids(rewards, size), found.OBJECTIVES["grpo"]
    )


def stateset_loss(logps, old, reference, advantages, mask, beta):
    found = import_module("stateset_agents.training.objectives")
    given = {"logp_cur": logps, "logp_old": old, "logp_ref": reference}
    how = found.OBJECTIVES["grpo"].with_(kl_coef=beta)
    return found.policy_loss(**given, advantages=advantages, mask=mask, objective=how).loss


def oxrl_loss(logps, old, reference, advantages, mask, beta):
    by_token = advantages[:, None].expand_as(logps)
    loss = of("oxrl.algs.losses.sgrpo", "compute_sgrpo_loss")
    return loss(logps, old, by_token, mask, None, reference, 0.2, 0.2, 0.0, beta)[0]


def retrain_loss(logps, old, reference, advantages, mask, beta):
    loss = of("retrain.local_train_helper", "_compute_policy_loss")
    return loss((logps - old).exp(), advantages[:, None], mask, 0.2, 0.2)[0]


def toolbrain_loss(logps, old, reference, advantages, mask, beta):
    # read alone: the package asks for agents and servers on import
    folder = find_spec("toolbrain").submodule_search_locations[0]
    loss = run_path(f"{folder}/learning/grpo/losses.py")["grpo_loss"]
    return loss(logps, old, reference, advantages[:, None], 0.2, beta, mask)


def gepa_loss(logps, old, reference, advantages, mask, beta):
    """Return what its train_step makes of tokens: it has no mask, and is given none that is padding."""
    core, real = import_module("gepa_dapo_grn.dapo_core"), mask.bool()
    own = SimpleNamespace(config=core.DAPOConfig(use_soft_gating=False))
    gain = advantages[:, None].expand_as(logps)[real]
    policy = core.DAPOTrainer._compute_policy_loss(own, logps[real], old[real], gain)
    return policy + beta * core._approx_kl(logps[real], reference[real])


ADVANTAGES = {
    "multireward_grpo": multireward,
    "polgrad": polgrad_advantages,
    "stateset_agents": stateset_advantages,
    "retrain": by_group("retrain.advantages", "compute_grpo_advantages"),
    "forge": lambda rewards, size: of("forge.core.grpo", "compute_group_advantages")(
        rewards[:, 0], size
    ),
}
LOSSES = {
    "agenttrainer": by_sequence("agenttrainer.loss.grpo_loss"),
    "polgrad": polgrad_loss,
    "stateset_agents": stateset_loss,
    "oxrl": oxrl_loss,
    "retrain": retrain_loss,
    "toolbrain": toolbrain_loss,
    "gepa_dapo_grn": gepa_loss,
}
