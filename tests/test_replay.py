"""Segments of a recorded step, computed again: our own trainer's, right and with each planted fault."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.causes import cause_of, stages_with, variant_names
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.objective import advantages
from rlvr_debug.grpo.training import Training
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import Checked, check
from rlvr_debug.replay.consequences.rewarded import contrast
from rlvr_debug.replay.declared import AdvantageInputs, Own
from rlvr_debug.replay.finding import AGREES, DEVIATES, NONE, NOT_SEEN, Finding
from rlvr_debug.replay.judge import judge
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, MicroBatch, Record
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.segments.advantages import compare_advantages, expected_advantages
from rlvr_debug.replay.segments.prompts import rendered
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.replay.variants import next_for, variants_of
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.trainers.own.recorder import record_training
from rlvr_debug.verdicts.decide import mechanism_of
from tests.small import ROWS, SETTINGS, small_environment

Recorded = Callable[..., Record]

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))
# by fault: the segments that are right as the first to deviate, and settings under which it acts
FAULTS: dict[str, tuple[list[str], dict[str, Any]]] = CASES["faults"]
# settings of a healthy trainer; those that stand together are read by code of their own
HEALTHY: dict[str, dict[str, Any]] = CASES["healthy"]


@pytest.fixture(scope="module")
def recorded(chat: Any, talkative: Callable[[int], Any]) -> Recorded:
    """(faults, **settings) -> the record of two steps, always from the same model and rows."""

    def run(*faults: str, **settings: Any) -> Record:
        model, reference = talkative(0), talkative(0)
        sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
        told = replace(SETTINGS, **settings)
        stages = stages_with([fault for fault in faults if fault in variant_names()])
        if "clipped-objective" in faults:  # a fault that no cause has
            stages = stages.with_fault("clipped_objective", lambda r, a, *_: -r * a[:, None])
        environment = small_environment()
        training = Training(chat, environment, ROWS, told, 0, stages)
        return record_training(
            training, model, None if told.lora_r else reference, sampler, steps=2
        )

    return cache(run)


@pytest.fixture(scope="module")
def healthy(recorded: Recorded) -> Record:
    return recorded(num_iterations=2, gradient_accumulation_steps=2, temperature=0.8)


@pytest.fixture
def changed(healthy: Record) -> Record:
    """Return a healthy trainer's record, to be changed."""
    return copy.deepcopy(healthy)


def batches(record: Record) -> Iterator[Batch]:
    return (generation.batch for generation in record.generations if generation.batch is not None)


def micros(record: Record) -> list[MicroBatch]:
    return [micro for update in record.updates for micro in update.micro_batches]


def number(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor


def found(checked: Checked) -> dict[str, str]:
    return {finding.segment: finding.status for finding in checked.findings}


def judged(record: Record, name: str) -> Finding:
    """Return the finding of one segment alone."""
    segment = next(segment for segment in SEGMENTS if segment.name == name)
    return judge(name, segment.instances(record, Network(record)))


def status(record: Record, name: str) -> str:
    """Return what the finding says, without what it would name: whatever deviates is compared once."""
    segment = next(segment for segment in SEGMENTS if segment.name == name)
    gaps = [instance.compare() for instance in segment.instances(record, Network(record))]
    shares = [gap.share for gap in gaps if gap is not None]
    return NONE if not shares else AGREES if max(shares) <= 1 else DEVIATES


@pytest.mark.parametrize(("of_rows", "expected"), [(True, "agrees"), (False, "deviates")])
def test_a_rollout_function_may_limit_a_turn_of_its_own_and_a_sampler_may_not(
    changed: Record, of_rows: bool, expected: str
) -> None:
    for generation in changed.generations:
        for place, call in enumerate(generation.calls):
            assert call.used
            used = replace(call.used, max_new_tokens=call.used.max_new_tokens - 1)
            rows = [*range(len(call.prompts))] if of_rows else []
            generation.calls[place] = replace(call, used=used, rows=rows)
    assert status(changed, "sampling settings") == expected


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_trainer_is_not_blamed(recorded: Recorded, name: str) -> None:
    checked = check(recorded(**HEALTHY[name]))
    assert checked.first is None, checked.first
    assert not [f for f in checked.findings if f.status == NOT_SEEN]
    # a tolerance that is nearly used up would be too tight on another machine
    coarse = name == "bfloat16"
    assert max(f.share for f in checked.findings) < (0.9 if coarse else 0.5)


# faults whose deviation has no name yet: the place alone speaks for them
NAMELESS = {"ratio-blow-up"}
# what is said of a later segment: it follows from the first, or is judged in the tokens that are trained
LATER = {
    "attention-from-loss-mask": ("model inputs", DEVIATES),
    "tool-turn-rendered-alone": ("loss mask", AGREES),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is(recorded: Recorded, fault: str) -> None:
    expected, settings = FAULTS[fault]
    record = recorded(fault, **settings)
    checked = check(record)
    assert checked.first is not None
    assert checked.first.segment in expected
    if fault not in variant_names():
        return
    if checked.first.names:
        assert cause_of(fault) in checked.first.causes
    answer = answer_of(record, checked)
    present = mechanism_of(cause_of(fault), answer).present
    assert bool(present) == (fault not in NAMELESS)
    if fault in NAMELESS:
        assert answer["names"] == []
        assert "tokens deviate" in answer["answer"]
        assert "replay/segments/loss.py" in answer["next"]
    if fault in LATER:
        segment, status = LATER[fault]
        assert found(checked)[segment] == status


def test_what_to_do_next_is_about_the_segment_that_deviates_or_the_variant_itself() -> None:
    """It was the cause's: raise the learning rate, of a gradient that is scaled down too far."""
    advice = {each.name: next_for(each.name) for each in SEGMENTS if each.name != "effect"}
    assert len(set(advice.values())) == len(SEGMENTS) - 1
    own = {v.name for name in advice for v in variants_of(name) if v.next}
    assert own >= {"weights are kept in bfloat16", "another learning rate than the schedule's"}
    assert next_for("clip", "scaled down further than the limit asks") == advice["clip"]
    assert "float32" in next_for("optimizer step", "weights are kept in bfloat16")


def test_every_planted_fault_of_the_library_is_among_those_that_are_found() -> None:
    assert set(variant_names()) <= set(FAULTS)


def test_a_prompt_of_plain_text_is_read_without_a_template(healthy: Record) -> None:
    assert rendered(healthy, "1 + 1") == healthy.tokenizer("1 + 1")["input_ids"]


def test_every_variant_can_be_tried_on_every_instance(healthy: Record) -> None:
    """A name whose knobs its segment does not take would end the check of whoever has that fault."""
    network, tried = Network(healthy), 0
    for segment in SEGMENTS:
        for instance in segment.instances(healthy, network):
            for variant in variants_of(segment.name):
                instance.compare(**variant.knobs)
                tried += 1
    assert tried > 300


@pytest.mark.parametrize(
    ("segment", "names"),
    [
        ("loss", {"the KL is subtracted", "no KL term", "the KL is estimated by k2"}),
        ("loss", {"the sign is reversed", "padding is counted", "counted twice"}),
        ("loss", {"not divided by the number of micro-batches"}),
        ("gradient", {"only the last micro-batch", "sign reversed"}),
        ("optimizer step", {"no weight moves", "made twice", "no bias correction"}),
        ("policy log-probabilities", {"temperature ignored", "shifted by one token"}),
    ],
)
def test_a_variant_does_not_fit_what_is_right(
    healthy: Record, segment: str, names: set[str]
) -> None:
    """A variant that gives what is right anyway would name what is no fault."""
    assert names <= {variant.name for variant in variants_of(segment)}
    network = Network(healthy)
    instances = list(next(s for s in SEGMENTS if s.name == segment).instances(healthy, network))
    for variant in variants_of(segment):
        if variant.name in names:
            gaps = [instance.compare(**variant.knobs) for instance in instances]
            assert any(gap is None or gap.share > 1 for gap in gaps), variant.name


def _largest_advantage(record: Record) -> torch.Tensor:
    gains = next(batches(record)).advantages
    place = int(gains.abs().argmax())
    return gains[place : place + 1]


def _largest_gradient(record: Record) -> torch.Tensor:
    gradients = record.updates[0].gradients or {}
    return max(gradients.values(), key=lambda each: float(each.norm()))


# what is looked at of a record, and the smallest relative fault that float32 tells from rounding, with room (docs/check.md)
NUMBERS: Mapping[str, tuple[Callable[[Record], list[torch.Tensor]], float]] = {
    "advantages": (lambda of: [_largest_advantage(of)], 1e-4),
    "old log-probabilities": (lambda of: [number(next(batches(of)).old)], 1e-3),
    "policy log-probabilities": (lambda of: [number(micros(of)[0].logprobs)], 1e-3),
    "loss": (lambda of: [number(micros(of)[0].grad_logprobs)], 1e-3),
    "gradient": (lambda of: [_largest_gradient(of)], 1e-3),
    "clip": (lambda of: [*(of.updates[0].clipped or {}).values()], 1e-3),
}


def _times(record: Record, what: str, factor: float) -> Record:
    """Return the record with some of its numbers multiplied."""
    for tensor in NUMBERS[what][0](record):
        tensor *= factor
    return record


def test_a_number_that_losses_are_multiplied_by_behind_the_loss_is_told_in_the_gradient(
    changed: Record,
) -> None:
    """transformers divides by the accumulation what TRL's loss has divided already, if a class says so."""
    for micro in micros(changed):
        micro.rescaled = 0.5
    for update in changed.updates:
        update.gradients = {name: g / 2 for name, g in (update.gradients or {}).items()}
        update.clipped = {name: g / 2 for name, g in (update.clipped or {}).items()}
    for micro in micros(changed):
        micro.grad_logprobs = number(micro.grad_logprobs) / 2
    checked = check(changed)
    assert checked.first is not None
    assert checked.first.segment == "gradient"
    assert "divided by the number of micro-batches" in {name.name for name in checked.first.names}
    assert found(checked)["loss"] == AGREES


def test_what_the_policy_reads_is_told_before_earlier_passes_of_the_same_method(
    changed: Record,
) -> None:
    """An override that rebuilds the attention mask was told by the old log-probabilities, which follow from it."""
    checked = check(_read_with_a_hole(changed))
    assert checked.deviating[0].segment == "old log-probabilities"
    assert checked.first is not None
    assert checked.first.segment == "old log-probabilities"
    methods = ("old log-probabilities", "model inputs")
    changed.own = replace(changed.own, overrides=dict.fromkeys(methods, "your `T` overrides `f`"))
    named = check(changed).first
    assert named is not None
    assert named.segment == "model inputs"


def _read_with_a_hole(record: Record) -> Record:
    """Return the record of a trainer that hides a prompt's token from all passes, and says other old log-probabilities."""
    for micro in micros(record):
        assert micro.forward is not None
        mask = torch.ones_like(micro.forward.input_ids)
        mask[:, micro.given.prompt_ids.shape[1] - 1] = 0
        micro.forward = replace(micro.forward, attention_mask=mask)
    for batch in batches(record):
        number(batch.old)[:, ::2] *= 1.5
    for micro in micros(record):
        old = number(micro.given.old).clone()
        old[:, ::2] *= 1.5
        micro.given = replace(micro.given, old=old)
    return record


@pytest.mark.parametrize("what", NUMBERS)
def test_a_small_change_of_one_number_is_seen(changed: Record, what: str) -> None:
    assert status(_times(changed, what, 1 + NUMBERS[what][1]), what) == DEVIATES


def test_a_small_change_of_what_the_sampler_said_is_seen(changed: Record) -> None:
    said = changed.generations[0].calls[0].logprobs
    said[:] = [[each * (1 + 1e-3) for each in row] for row in said]
    assert status(changed, "sampler") == DEVIATES


@pytest.mark.parametrize("what", ["advantages", "loss", "gradient", "policy log-probabilities"])
def test_nan_is_no_agreement(changed: Record, what: str) -> None:
    assert judged(_times(changed, what, float("nan")), what).status == DEVIATES


def test_tokens_and_the_mask_of_them_deviate_each_for_itself(recorded: Recorded) -> None:
    both = found(check(recorded("prompt-without-tools", "eos-not-trained")))
    assert (both["tokens"], both["loss mask"]) == (DEVIATES, DEVIATES)


def test_what_was_not_recorded_is_not_seen_and_no_pass(changed: Record) -> None:
    for generation in changed.generations:
        generation.rewards, generation.reward_calls = None, []
    for micro in micros(changed):
        micro.grad_logprobs = None
    states = found(check(changed))
    assert {states[name] for name in ("rewards", "advantages", "loss", "gradient")} == {NOT_SEEN}
    assert states["tokens"] == AGREES


def test_the_reference_is_judged_in_micro_batches_where_their_loss_asks_for_it(
    record: Record,
) -> None:
    """TRL 0.18 has it in its loss alone; a generation's batch is without it."""
    record = copy.deepcopy(record)
    for generation, batch in zip(record.generations, batches(record), strict=True):
        generation.batch = replace(batch, reference=None)
    assert status(record, "reference log-probabilities") == AGREES
    number(micros(record)[-1].given.reference).mul_(1.001)
    assert status(record, "reference log-probabilities") == DEVIATES


@pytest.mark.parametrize("again", [False, True])
def test_old_log_probabilities_that_each_update_computes_again_are_told_and_their_rounding_is_not(
    changed: Record, again: bool
) -> None:
    """They were said to be of other rows, exactly compared, in *micro-batches*."""
    for micro in micros(changed):
        old = number(micro.logprobs) if again else number(micro.given.old) * (1 + 1e-7)
        micro.given = replace(micro.given, old=old.clone())
    found = judged(changed, "old log-probabilities")
    assert found.status == (DEVIATES if again else AGREES)
    name = "computed again in each update, so that the ratio is always 1"
    assert [each.name for each in found.names] == [name] * again
    assert status(changed, "micro-batches") == AGREES
    # where no weights are known to hold them to, they are compared with the generation's
    for generation in changed.generations:
        generation.weights = None
    assert status(changed, "micro-batches") == DEVIATES


@pytest.mark.parametrize(("other", "expected"), [(False, DEVIATES), (True, AGREES)])
def test_log_probabilities_of_tokens_that_were_not_sampled_are_not_held_to_the_samplers(
    changed: Record, other: bool, expected: str
) -> None:
    """A rollout function that tokenises its text again, and computes their log-probabilities, was told as a wrong sampler."""
    for generation, batch in zip(changed.generations, batches(changed), strict=True):
        del generation.calls[1:]  # turns after tools
        told = torch.zeros(batch.loss_mask.shape)
        for row, held in zip(told, generation.calls[0].logprobs, strict=True):
            row[: len(held)] = torch.tensor(held)
        told[:, 1:] -= 1.0
        batch.completion_ids[:, 1:] += other
        generation.batch = replace(batch, sampler=told)
    assert status(changed, "sampler") == expected


@pytest.mark.parametrize(("by_prompt", "expected"), [(False, AGREES), (True, DEVIATES)])
def test_one_reward_for_all_is_no_deviation_but_one_for_each_prompt_is(
    changed: Record, by_prompt: bool, expected: str
) -> None:
    for generation, batch in zip(changed.generations, batches(changed), strict=True):
        rewards = number(generation.rewards)
        groups = torch.arange(len(rewards)) // changed.settings.group_size
        rewards[:] = float(by_prompt) * groups[:, None]
        batch.advantages.zero_()
    assert status(changed, "effect") == expected
    found = contrast(changed)
    assert found is not None
    assert not found.passed


@pytest.mark.parametrize(("asked", "expected"), [(False, DEVIATES), (True, AGREES)])
def test_a_loss_of_no_token_is_no_deviation_where_cut_replies_are_to_be_left_out(
    changed: Record, asked: bool, expected: str
) -> None:
    changed.settings = replace(changed.settings, mask_truncated_completions=asked)
    for batch in batches(changed):
        batch.loss_mask.zero_()
    assert status(changed, "effect") == expected


def test_a_group_of_two_is_rounded_on_the_way() -> None:
    settings = Settings(2, Sampling(), 10)
    generator = torch.Generator().manual_seed(0)
    first = 1 + torch.rand(500, 1, generator=generator)
    rewards = torch.cat([first, first + 0.02 * torch.rand(500, 1, generator=generator)], 1)
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    got = ((rewards - mean) / (std + 1e-4)).flatten().double()
    given = AdvantageInputs(rewards.view(-1, 1).double(), torch.ones(1000), settings)
    right, wrong = (compare_advantages(given, got * times, Own()) for times in (1, 1.01))
    assert right is not None
    assert wrong is not None
    assert right.share < 0.5
    assert wrong.share > 1


def test_the_end_of_the_prompt_among_the_trained_tokens_is_seen(changed: Record) -> None:
    for generation, batch in zip(changed.generations, batches(changed), strict=True):
        prompt, mask = batch.prompt_ids[:, -3:], batch.prompt_mask[:, -3:]
        moved = {
            "prompt_ids": batch.prompt_ids[:, :-3],
            "prompt_mask": batch.prompt_mask[:, :-3],
            "completion_ids": torch.cat([prompt, batch.completion_ids], 1),
            "completion_mask": torch.cat([mask, batch.completion_mask], 1),
            "loss_mask": torch.cat([mask, batch.loss_mask], 1),
        }
        generation.batch = replace(batch, **moved)
    assert status(changed, "tokens") == AGREES
    finding = judged(changed, "loss mask")
    assert "the end of the prompt is counted" in [name.name for name in finding.names]
    assert finding.note.endswith(" prompt tokens counted")


def test_turns_of_tools_are_none_where_there_are_no_tools(changed: Record) -> None:
    for generation in changed.generations:
        del generation.calls[1:]
    assert status(changed, "tool turns") == NONE


def test_weights_that_are_written_between_two_steps_are_seen(changed: Record) -> None:
    later = changed.updates[1].micro_batches[0]
    changed.weights.append({name: tensor + 1 for name, tensor in changed.weights[-1].items()})
    later.weights = len(changed.weights) - 1
    assert status(changed, "weights between steps") == DEVIATES


def test_a_step_of_which_no_groups_of_the_optimizer_are_known_is_computed(changed: Record) -> None:
    """A record that a loop of one's own wrote ended in a ValueError there."""
    for update in changed.updates:
        update.groups = []
    assert status(changed, "optimizer step") == AGREES


def test_a_row_that_is_trained_twice_is_seen(changed: Record) -> None:
    rows = number(micros(changed)[0].given.rows)
    rows[0] = rows[1]
    assert status(changed, "micro-batches") == DEVIATES


@given(data=st.data())
def test_advantages_are_those_of_our_trainer_for_any_rewards(data: st.DataObject) -> None:
    """Two implementations that share no code."""
    size = data.draw(st.integers(2, 6))
    count = size * data.draw(st.integers(1, 4))
    values = st.lists(st.floats(-5, 5, width=32), min_size=count, max_size=count)
    rewards = torch.tensor(data.draw(values), dtype=torch.float64)
    scale = data.draw(st.sampled_from(["group", "batch", "none"]))
    settings = Settings(size, Sampling(), 8, scale_rewards=scale)
    ours = advantages(rewards.view(-1, size), scale, settings.advantage_epsilon).flatten()
    torch.testing.assert_close(expected_advantages(rewards[:, None], settings), ours)
