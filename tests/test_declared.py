"""What a run computes on purpose: declared by a name or by a function, it agrees, and a fault in it is still found."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

import trl
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

import rlvr_debug
from rlvr_debug.errors import InputError
from rlvr_debug.recorders.trl.live import recorded
from rlvr_debug.replay.answer import answer_of, answer_text, status_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.declared import ALGORITHMS, AdvantageInputs, LossInputs, Own, named
from rlvr_debug.replay.finding import AGREES, FAILED, NOT_SEEN, Finding
from rlvr_debug.replay.judge import judge
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Generation, MicroBatch, Record, Update
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.segments.advantages import Formula, expected_advantages
from rlvr_debug.replay.segments.loss import expected_gradient
from rlvr_debug.replay.segments.loss_formula import loss_inputs
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.venvs import build_venv, venv_names
from tests.shared import ran
from tests.test_check import built, overriding, placed, statuses


@pytest.fixture(autouse=True)
def _nothing_declared() -> Iterator[None]:
    yield
    rlvr_debug.expect()


def found(record: Record, segment: str) -> Finding:
    one = next(each for each in SEGMENTS if each.name == segment)
    return judge(segment, one.instances(record, Network(record)), pairs=one.pairs)


def furthest(record: Record, segment: str) -> float:
    """Return the largest share of its tolerance in a segment, of which nothing is named."""
    one = next(each for each in SEGMENTS if each.name == segment)
    gaps = [each.compare() for each in one.instances(record, Network(record))]
    return max(gap.share for gap in gaps if gap is not None)


def finding(record: Record, segment: str) -> Finding:
    """Return what the whole check finds of a segment, whatever fails in it."""
    [one] = [each for each in check(record).findings if each.segment == segment]
    return one


def declaring(record: Record, **what: Any) -> Record:
    return replace(record, own=replace(record.own, declared=what))


def steps_of(trainer: Any) -> Record:
    return recorded(trainer, trainer.train, steps=2, rewards=False)[0]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def gmpo(request: pytest.FixtureRequest) -> Record:
    """Return a record of TRL's GMPO, whose ratios are not 1."""

    def kind(args: Any, **given: Any) -> Any:
        names = ["output_dir", "max_steps", "learning_rate", "per_device_train_batch_size", "beta"]
        names += ["num_generations", "max_completion_length", "num_iterations", "use_cpu", "bf16"]
        told = {name: getattr(args, name) for name in (*names, "save_strategy", "disable_tqdm")}
        return GMPOTrainer(args=GMPOConfig(**told, report_to=[], epsilon=0.01), **given)

    return steps_of(built(kind, num_iterations=2, bf16=request.param == "bfloat16"))


def test_an_algorithm_of_its_own_is_called_so_until_it_is_declared(gmpo: Record) -> None:
    answer = answer_of(gmpo, check(gmpo))
    assert (answer["first"], status_of(answer)) == ("loss", 3)
    assert answer["answer"].startswith(
        "loss: not GRPO's as set: your `GMPOTrainer` overrides `_compute_loss` (gmpo_trainer.py:"
    )
    assert "It computes what gmpo would." in answer["answer"]
    assert "If that is meant, declare it: `--expect loss=gmpo`" in answer["answer"]
    meant = declaring(gmpo, loss="gmpo")
    answer = answer_of(meant, check(meant))
    assert answer["first"] is None, answer["answer"]
    assert "as declared: gmpo" in answer_text(answer)


def gmpo_loss(given: LossInputs, **fault: float) -> Tensor:
    """Return GMPO's loss, arXiv 2507.20673, or one with a fault."""
    gap, gain = given.logprobs - given.old, given.advantages + fault.get("off", 0.0)
    low, high = -given.settings.clip, given.settings.epsilon_high
    clipped = torch.where(gain > 0, gap.clamp(max=high), gap.clamp(min=low))
    held = gap if "unclipped" in fault else clipped
    count = given.mask.sum(1).clamp(min=1)
    ratio = ((held * given.mask).sum(1) / count ** fault.get("power", 1.0)).exp()
    assert given.reference is not None
    apart = given.reference - given.logprobs
    kl = given.settings.kl_beta * ((apart.exp() - apart - 1) * given.mask).sum(1) / count
    each = kl - fault.get("sign", 1.0) * ratio * gain[:, 0]
    return fault.get("times", 1.0) * each.sum() / given.rows


# a sign, no clip, advantages that are off, a half, a sum for the mean
FAULTS: Sequence[Mapping[str, float]] = (
    *({"sign": -1.0}, {"unclipped": 1.0}, {"off": 0.05}, {"times": 0.5}, {"power": 0.0}),
)


def computing(record: Record, **fault: float) -> Record:
    """Return the record as it would be, had the trainer's loss this fault."""
    updates = []
    for update in record.updates:
        micros = []
        for micro in update.micro_batches:
            assert micro.logprobs is not None
            leaf = micro.logprobs.clone().requires_grad_()
            loss = gmpo_loss(loss_inputs(record, update, micro, leaf, None), **fault)
            micros.append(replace(micro, grad_logprobs=torch.autograd.grad(loss, leaf)[0]))
        updates.append(replace(update, micro_batches=micros))
    return replace(record, updates=updates)


@pytest.mark.parametrize("what", ["gmpo", gmpo_loss])
def test_a_declared_loss_agrees_and_a_fault_planted_in_it_is_found(gmpo: Record, what: Any) -> None:
    record = declaring(gmpo, loss=what)
    assert found(record, "loss").status == AGREES
    assert found(computing(record), "loss").status == AGREES
    for fault in FAULTS:
        assert furthest(computing(record, **fault), "loss") > 1, fault


class Unscaled(trl.GRPOTrainer):  # type: ignore[misc]
    """A trainer whose advantages are not divided by the spread, whatever the arguments say."""

    def of(self, rewards: Tensor) -> Tensor:
        return rewards - rewards.mean(1, keepdim=True)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        rewards = torch.tensor(self.seen).view(-1, self.num_generations)
        out["advantages"] = self.of(rewards).flatten()
        return out

    def _calculate_rewards(self, *given: Any, **named: Any) -> Any:
        out = super()._calculate_rewards(*given, **named)
        self.seen = out.flatten().tolist()
        return out


def unscaled(given: AdvantageInputs) -> Tensor:
    grouped = given.rewards.view(-1, given.settings.group_size)
    return (grouped - grouped.mean(1, keepdim=True)).flatten()


def test_declared_advantages_are_what_the_recorded_ones_are_held_to() -> None:
    rlvr_debug.expect(advantages=unscaled)
    record = steps_of(built(Unscaled))
    assert found(record, "advantages").status == AGREES
    assert found(declaring(record, advantages="dr_grpo"), "advantages").status == AGREES
    assert "dr_grpo" in found(declaring(record), "advantages").algorithms
    wrong = declaring(record, advantages=lambda given: unscaled(given) * 1.001)
    answer = answer_of(wrong, check(wrong))
    assert answer["first"] == "advantages"
    assert "advantages: not what was declared, `" in answer["answer"]
    assert "take the declaration back" in answer["next"]
    for what, said in (
        (lambda _: torch.zeros(3), "returned shape [3], expected [8]"),
        (lambda given: given.nothing, "AttributeError: 'AdvantageInputs' object has no"),
    ):
        failed = finding(declaring(record, advantages=what), "advantages")
        assert failed.status == FAILED
        assert said in failed.note


def pkpo(
    group: Sequence[float], k: int, *, baseline: bool = True, of_all: bool = True
) -> list[float]:
    """Return what arXiv 2505.15201, eq. 33, makes of a group's rewards, over its sets of k one by one; or a fault."""
    made = []
    for own in range(len(group)):
        total, found = 0.0, 0
        for chosen in itertools.combinations(range(len(group)), k):
            if own in chosen:
                found += 1
                total += max(group[each] for each in chosen)
                total -= baseline * max(group[each] for each in chosen if each != own)
        made.append(total / (math.comb(len(group), k) if of_all else found))
    return made


_REWARDS = st.sampled_from([0.0, 1.0]) | st.integers(-5, 5).map(float) | st.floats(-10, 10)


@given(st.lists(st.lists(_REWARDS, min_size=6, max_size=6), min_size=1, max_size=2))
def test_pkpo_is_what_its_definition_gives_over_all_sets_of_k(groups: list[list[float]]) -> None:
    rewards = torch.tensor(groups, dtype=torch.float64).view(-1, 1)
    for k in range(2, 7):
        how = Formula(**ALGORITHMS["advantages"][f"pkpo-{k}"])
        ours = expected_advantages(rewards, Settings(6, Sampling(), 6), how)
        theirs = torch.tensor([pkpo(group, k) for group in groups], dtype=torch.float64)
        torch.testing.assert_close(ours, theirs.flatten(), rtol=0, atol=1e-6)


class RaisesBest(Unscaled):
    """A trainer with PKPO's advantages, of the best of 3."""

    def of(self, rewards: Tensor) -> Tensor:
        return torch.tensor([pkpo(group, 3) for group in rewards.tolist()])


PKPO_FAULTS: Mapping[str, Callable[[list[float]], list[float]]] = {
    "no baseline": lambda group: pkpo(group, 3, baseline=False),
    "a mean over the sets that have it": lambda group: pkpo(group, 3, of_all=False),
    "another k": lambda group: pkpo(group, 2),
    "the best of all": lambda group: pkpo(group, len(group)),
    "negated": lambda group: [-each for each in pkpo(group, 3)],
}


def with_advantages(generation: Generation, of: Callable[[list[float]], list[float]]) -> Generation:
    assert generation.batch is not None
    assert generation.rewards is not None
    made = [each for group in generation.rewards.view(-1, 4).tolist() for each in of(group)]
    return replace(generation, batch=replace(generation.batch, advantages=torch.tensor(made)))


def test_pkpo_is_named_until_it_is_declared_and_a_fault_in_it_is_found() -> None:
    record = steps_of(built(RaisesBest, bf16=True))
    assert found(record, "advantages").algorithms == ("pkpo-3",)
    meant = declaring(record, advantages="pkpo-3")
    assert answer_of(meant, check(meant))["first"] is None
    for name, fault in PKPO_FAULTS.items():
        generations = [with_advantages(each, fault) for each in record.generations]
        wrong = replace(meant, generations=generations)
        assert furthest(wrong, "advantages") > 1, name
    unseen = finding(declaring(record, advantages="pkpo-8"), "advantages")
    assert (unseen.status, unseen.note) == (NOT_SEEN, "a group of 4 has no best of 8")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("loss", "--expect loss: expected SEGMENT=NAME, such as loss=gmpo"),
        ("clip=gmpo", "--expect: segment 'clip' cannot be declared: expected one of"),
        ("advantages=pkpo", "--expect advantages: unknown algorithm 'pkpo': did you mean 'pkpo-"),
        ("loss=gmop", "--expect loss: unknown algorithm 'gmop': did you mean 'gmpo'?"),
    ],
)
def test_a_word_that_declares_nothing_is_one_line(word: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        named([word])
    assert line in str(error.value)


VERL = """
import json, sys, torch
from types import SimpleNamespace
from verl.trainer.ppo import core_algos as algos
from verl.workers.config import ActorConfig
told = json.load(sys.stdin)
rewards, lengths = torch.tensor(told["rewards"]), torch.tensor(told["lengths"])
mask = (torch.arange(int(lengths.max())) < lengths[:, None]).float()
scores = torch.zeros_like(mask)
scores[torch.arange(len(lengths)), lengths - 1] = rewards
index = [str(n // told["size"]) for n in range(len(rewards))]
config = SimpleNamespace(gamma=1.0)
of = {
    "rloo": algos.compute_rloo_outcome_advantage(scores, mask, index=index),
    "opo": algos.compute_opo_outcome_advantage(scores, mask, index=index),
    "gpg": algos.compute_gpg_outcome_advantage(scores, mask, index=index),
    "reinforce++": algos.compute_reinforce_plus_plus_outcome_advantage(scores, mask, config=config),
    "reinforce++-baseline": algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        scores, mask, index=index),
    "dr_grpo": algos.compute_grpo_outcome_advantage(
        scores, mask, index=index, norm_adv_by_std_in_grpo=False),
}
advantages = {name: both[0][:, 0].tolist() for name, both in of.items()}
actor = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=8, clip_ratio=0.2,
                    clip_ratio_low=0.2, clip_ratio_high=0.2)
gains = torch.tensor(told["gains"])[:, None].expand(mask.shape).double()
old = torch.tensor(told["old"]).double()
losses = {}
for name, mode in (("dppo_tv", "token-mean"), ("dppo_kl", "token-mean"), ("gpg", "token-mean"),
                   ("geo_mean", "seq-mean-token-mean"), ("gspo", "seq-mean-token-mean")):
    now = torch.tensor(told["now"]).double().requires_grad_()
    loss = algos.get_policy_loss_fn(name)(old, now, gains, mask, mode, actor, None)[0]
    losses[name] = torch.autograd.grad(loss, now)[0].tolist()
print(json.dumps({"advantages": advantages, "losses": losses}))
"""


def gradient_of(loss: str, given: Batch, now: Tensor, settings: Settings) -> Tensor:
    """Return the gradient of a declared loss by the policy's log-probabilities."""
    generations, micro = [Generation(batch=given)], MicroBatch(0, given, logprobs=now)
    own = Own(declared={"loss": loss})
    made_up = Record("made up", settings, None, None, lambda: None, own=own)
    made_up.generations = generations
    return expected_gradient(made_up, Update([micro]), micro).view(now.shape)


@pytest.mark.heavy
def test_algorithms_are_those_that_verl_has() -> None:
    if "verl" not in venv_names():
        pytest.skip("there is no environment of verl")
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 5, 2, 6, 1, 4, 6, 2])
    mask = torch.arange(6) < lengths[:, None]
    rewards = torch.rand(8, generator=generator).round(decimals=1)
    rewards[2] = 0.0
    gains = torch.randn(8, generator=generator)
    now = -3 * torch.rand(8, 6, generator=generator)
    old = (now + 0.5 * torch.randn(8, 6, generator=generator)).clamp(max=-1e-3)
    told = {"rewards": rewards.tolist(), "lengths": lengths.tolist(), "size": 4}
    told |= {"gains": gains.tolist(), "now": now.tolist(), "old": old.tolist()}
    done = ran([str(build_venv("verl")), "-c", VERL], input=json.dumps(told), check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    settings = Settings(4, Sampling(), 6, loss_type="dapo")
    near: Any = {"rtol": 1e-4, "atol": 1e-5}
    for name, wanted in theirs["advantages"].items():
        how = Formula(**ALGORITHMS["advantages"][name])
        ours = expected_advantages(rewards[:, None].double(), settings, how, lengths)
        torch.testing.assert_close(ours, torch.tensor(wanted).double(), msg=name, **near)
    given = Batch(*(mask.long(),) * 4, mask, gains, old=old)
    own_names = {"dppo_tv": "dppo-tv", "dppo_kl": "dppo-kl", "geo_mean": "gmpo"}
    near["atol"] = 1e-6
    for name, wanted in theirs["losses"].items():
        asked = replace(settings, loss_type="grpo") if name == "gspo" else settings
        ours = gradient_of(own_names.get(name, name), given, now, asked)
        torch.testing.assert_close(ours, torch.tensor(wanted).double(), msg=name, **near)


def test_a_ratio_of_each_sequence_has_the_gradient_of_one_of_each_of_its_tokens() -> None:
    """arXiv 2507.18071, section 4.3: where all tokens of a sequence have one advantage."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(6) < torch.tensor([3, 5, 2, 6])[:, None]
    now = -torch.rand(4, 6, generator=generator)
    off, gains = torch.rand(4, 6, generator=generator), torch.randn(4, generator=generator)
    given = Batch(*(mask.long(),) * 4, mask, gains, old=now - 0.1 * off)
    how = Settings(2, Sampling(), 6, loss_type="grpo")
    one, each, other = (gradient_of(x, given, now, how) for x in ("gspo", "gspo-token", "grpo"))
    torch.testing.assert_close(one, each)
    assert not torch.allclose(one, other, rtol=1e-3)


# --- a reward that keeps a state


def novelty() -> Callable[..., list[float]]:
    """Return a reward of how seldom a completion began so before."""
    seen: dict[str, int] = {}

    def seldom(completions: Sequence[Any], **_: Any) -> list[float]:
        found = []
        for completion in completions:
            begun = completion[0]["content"][:2]
            seen[begun] = seen.get(begun, 0) + 1
            found.append(seen[begun] ** -0.5)
        return found

    return seldom


def test_a_reward_that_keeps_a_state_is_told_until_it_is_declared() -> None:
    """A novelty bonus was called a fault, and nothing could be done about it."""
    told = placed(built(reward=novelty()), "rewards")
    assert "--expect rewards=stateful" in told["next"]
    rlvr_debug.expect(rewards="stateful")
    meant = placed(built(reward=novelty()))
    assert statuses(meant)["rewards"] == AGREES
    assert "noise of rewards" not in [each["name"] for each in meant["consequences"]]


def test_a_declared_state_hides_no_reward_that_is_changed_after_the_call() -> None:
    doubles = overriding("_calculate_rewards")(lambda _, usual, *given: usual(*given) * 2)
    undeclared = placed(built(doubles), "rewards")["answer"]
    assert "overrides `_calculate_rewards`" in undeclared
    assert "--expect" not in undeclared
    rlvr_debug.expect(rewards="stateful")
    answer = placed(built(doubles, reward=novelty()), "rewards")
    assert "changed after the call" in answer["answer"]


def test_only_a_state_can_be_declared_of_rewards() -> None:
    with pytest.raises(InputError, match="expected one of \\['stateful'\\]"):
        rlvr_debug.expect(rewards=lambda given: given)
    with pytest.raises(InputError, match="did you mean 'stateful'"):
        named(["rewards=statefull"])
