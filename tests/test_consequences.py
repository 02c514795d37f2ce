"""What follows from how steps are set: measured in records of our own trainer, and of numbers made for it."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.files import read_yaml
from rlvr_debug.replay.answer import answer_of, status_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.consequences import CONSEQUENCES
from rlvr_debug.replay.consequences import measured as all_measured
from rlvr_debug.replay.declared import Own
from rlvr_debug.replay.finding import Consequence
from rlvr_debug.replay.record import (
    UNOPENED,
    Batch,
    Call,
    Changed,
    Generation,
    MicroBatch,
    ParameterGroup,
    Record,
    RewardCall,
    Update,
)
from rlvr_debug.replay.settings import Sampling, Settings
from tests.small_record import small_record

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

EOS, PAD, WORD = 1, 0, 7


def record(rewards: list[list[float]], **told: Any) -> Record:
    """Return a record of one generation: groups of these rewards, whose replies end by themselves."""
    count, size = sum(map(len, rewards)), len(rewards[0])
    settings = Settings(size, Sampling(), 8, eos_ids=(EOS,), pad_id=PAD, **told)
    read = torch.tensor([[WORD, n // size] for n in range(count)])
    ids = torch.tensor([[WORD, WORD + n, EOS] for n in range(count)])
    mask = torch.ones_like(ids)
    gains = torch.tensor(rewards) - torch.tensor(rewards).mean(1, keepdim=True)
    generation = Generation(
        [{"prompt": f"row {n // size}", "answer": f"A{n // size}"} for n in range(count)],
        calls=[Call([[WORD, WORD] for _ in range(count)], ids.tolist())],
        rewards=torch.tensor(rewards).view(-1, 1),
        batch=Batch(read, torch.ones_like(read), ids, mask, mask.bool(), gains.flatten()),
    )
    return Record("made up", settings, None, None, lambda: None, generations=[generation])


def found(of: Record, name: str) -> Consequence:
    [one] = [each for each in all_measured(of)[0] if each.name == name]
    return one


def passed_in(of: Record) -> dict[str, bool]:
    return {each.name: each.passed for each in all_measured(of)[0]}


def batch_of(of: Record) -> Batch:
    batch = of.generations[0].batch
    assert batch is not None
    return batch


def asked(of: Record, prompt: Any, ids: list[int] | None = None) -> Record:
    """Have all rows of the record ask this, in these tokens."""
    [only] = of.generations
    count = len(only.rows)
    only.rows = [{"prompt": prompt}] * count
    if ids is not None:
        only.calls[0] = replace(only.calls[0], prompts=[ids] * count)
        read = {"prompt_ids": torch.tensor([ids] * count)}
        only.batch = replace(batch_of(of), **read, prompt_mask=torch.ones(count, len(ids)).long())
    return of


def trained(of: Record, moved: float = 0.5) -> None:
    """Have two updates of all of the first generation in the record, of a weight of four numbers."""
    batch = batch_of(of)
    logprobs = -torch.rand(batch.completion_ids.shape, generator=torch.Generator().manual_seed(0))
    given = replace(batch, old=logprobs - 0.1, reference=logprobs + 0.1)
    of.trainable = ("w",)
    of.weights = [{"w": torch.ones(4) + n * moved * torch.tensor([1.0, 1, 1, 0])} for n in range(3)]
    gradient = {"w": torch.ones(4)}
    of.updates = [
        Update(
            *([MicroBatch(0, given, number, logprobs=logprobs)], gradient, gradient),
            before=number,
            after=number + 1,
            optimizer="AdamW",
            groups=[ParameterGroup(("w",), 1e-6, 0.0)],
        )
        for number in range(2)
    ]


LEARNED = [[0.0, 1.0, 0.0, 1.0]] * 4


class Template:
    """A tokenizer whose template has a header for the assistant, as that of ChatML."""

    begin, end = "<start>{}|", "<end>"
    adds = True

    def apply_chat_template(
        self, messages: Any, *, add_generation_prompt: bool, **_: Any
    ) -> list[int]:
        text = "".join(self.begin.format(m["role"]) + m["content"] + self.end for m in messages)
        asked = add_generation_prompt and self.adds
        return [*map(ord, text + self.begin.format("assistant") * asked)]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


class Bare(Template):
    adds = False


class Instructed(Bare):
    """A template without a header, as that of Mistral: the user's turn ends where the assistant's begins."""

    begin = ""


USER = {"role": "user", "content": "1 + 1?"}


@pytest.mark.parametrize(("kind", "passed"), [(Template, True), (Bare, False), (Instructed, None)])
def test_prompts_without_the_assistant_s_header_are_told(kind: Any, passed: bool | None) -> None:
    made = record(LEARNED)
    made.tokenizer = kind()
    asked(made, [USER], made.tokenizer.apply_chat_template([USER], add_generation_prompt=True))
    assert passed_in(made).get("header") is passed


def test_a_prompt_that_is_cut_within_the_user_s_turn_has_no_header() -> None:
    """A tokenizer that truncates on the right leaves neither the turn's end nor the header."""
    made = record(LEARNED)
    made.tokenizer = Template()
    turns = [{"role": "system", "content": "Add."}, USER]
    ids = made.tokenizer.apply_chat_template(turns, add_generation_prompt=False)
    told = found(asked(made, turns, ids[: -len("?<end>")]), "header")
    assert not told.passed
    assert "prompts end without the assistant's header" in told.said


@pytest.mark.parametrize("closed", [True, False])
def test_a_prefill_that_the_template_closes_is_told(closed: bool) -> None:
    """TRL renders a prompt that ends with an assistant's message as a whole turn, and begins a new one."""
    made = record(LEARNED)
    made.tokenizer = Template()
    turns = [USER, {"role": "assistant", "content": "It is "}]
    ids = made.tokenizer.apply_chat_template(turns, add_generation_prompt=True)
    told = found(
        asked(made, turns, ids if closed else ids[: -len("<end><start>assistant|")]), "header"
    )
    assert told.passed != closed
    assert ("16 rows end with an assistant's message" in told.said) == closed


@pytest.mark.parametrize(("said", "passed"), [("1 + 1?", True), ("<start>user|1 + 1?<end>", False)])
def test_a_prompt_that_is_rendered_and_wrapped_in_the_template_again_is_told(
    said: str, passed: bool
) -> None:
    made = record(LEARNED)
    made.tokenizer = Template()
    assert found(asked(made, [{**USER, "content": said}]), "rendered twice").passed is passed


@pytest.mark.parametrize(("size", "off"), [(4, 0), (1, 4)])
def test_an_environment_that_draws_a_task_for_each_rollout_of_a_group_is_told(
    size: int, off: int
) -> None:
    made = record(LEARNED)
    [only] = made.generations
    assert "tasks of a group" not in passed_in(made)
    only.rows = [
        {UNOPENED: f"row {number // 4}", "prompt": f"row {number // 4}, task {number // size}"}
        for number in range(16)
    ]
    told = found(made, "tasks of a group")
    assert told.measured == {"groups": 4, "differ": off}
    assert told.passed is not bool(off)


@pytest.mark.parametrize(("high", "passed"), [(0.28, False), (1.0, True), (5.0, True)])
def test_a_cap_of_the_ratio_itself_that_is_below_1_is_told(high: float, passed: bool) -> None:
    made = record(LEARNED, loss_type="cispo", epsilon_high=high)
    trained(made)
    for micro in made.updates[0].micro_batches:
        assert micro.logprobs is not None
        micro.given = replace(micro.given, old=micro.logprobs * (1 + 1e-6))
    one = found(made, "cap")
    assert (one.passed, one.measured["share"]) == (passed, float(not passed))


@pytest.mark.parametrize("ended", [True, False])
def test_rows_that_are_masked_as_truncated_though_no_limit_cut_them_are_told(ended: bool) -> None:
    made = record(LEARNED, cut_at=8, mask_truncated_completions=True)
    [only] = made.generations
    outputs = [[WORD, WORD, *([EOS] if ended else [])] for _ in only.rows[2:]]
    cut = [[WORD] * 8] * 2  # rightly masked
    only.calls[0] = replace(only.calls[0], outputs=cut + outputs)
    batch_of(made).loss_mask[: 2 if ended else None] = False
    one = found(made, "limits")
    assert one.measured["share_of_shorter_rows_masked"] == float(not ended)
    assert ("masked as truncated" in one.said) is not ended


def test_what_is_ordinary_is_within_every_bound() -> None:
    told: dict[str, Any] = {"loss_type": "cispo", "epsilon_high": 5.0}
    ordinary = record(LEARNED, kl_beta=0.04, warmup_steps=2, total_steps=50, **told)
    ordinary.tokenizer = Template()
    [only] = ordinary.generations
    batch = batch_of(ordinary)
    values = [value for group in LEARNED for value in group]
    only.reward_calls = [RewardCall("exact", 0, {}, values, values)]
    ones = torch.ones_like(batch.completion_ids).float()
    only.batch = replace(batch, old=-ones, sampler=-ones, importance_weights=ones)
    trained(ordinary)
    second = copy.deepcopy(ordinary.generations[0])
    second.rows = [
        {"prompt": [{"role": "user", "content": f"other {row['prompt']}"}], UNOPENED: row["prompt"]}
        for row in second.rows
    ]
    assert second.batch is not None
    second.batch = replace(second.batch, prompt_ids=second.batch.prompt_ids + 10)
    ordinary.generations.append(second)
    measured = all_measured(ordinary)[0]
    # that settings were changed is measured only where some were
    wanted = [name for name in CONSEQUENCES if name != "settings changed"]
    assert [each.name for each in measured] == wanted
    assert [each.name for each in measured if not each.passed] == []
    ordinary.updates[0].changed = Changed(kl_beta=0.2)
    [last] = [each for each in all_measured(ordinary)[0] if not each.passed]
    assert last.said == "`beta` went from 0.04 to 0.2"


def test_of_what_a_run_does_not_have_nothing_is_measured() -> None:
    made = record(LEARNED)
    assert passed_in(made).keys().isdisjoint({"KL's gradient", "correction"})
    made.generations = []
    assert all_measured(made)[0] == ()


@pytest.mark.parametrize(("cut", "passed"), [(3, True), (4, False)])
def test_replies_that_a_limit_ends_are_counted(cut: int, passed: bool) -> None:
    made = record(LEARNED)
    for output in made.generations[0].calls[0].outputs[:cut]:
        output[-1] = WORD
    limits = found(made, "limits")
    assert limits.measured["share_of_replies_cut"] == cut / 16
    assert limits.passed is passed
    assert passed or "25% of the replies do not end by themselves" in limits.said


def test_prompts_and_conversations_near_their_limits_are_counted() -> None:
    near = found(record(LEARNED, max_prompt_length=12, max_context=15), "limits")
    assert near.measured["share_of_prompts_near_or_over"] == 1
    assert near.measured["share_of_rollouts_near_or_over"] == 1
    assert "limit of 12 tokens" in near.said
    assert "limit of 15 tokens" in near.said
    assert found(record(LEARNED, max_prompt_length=13, max_context=16), "limits").passed


def test_a_function_whose_mistakes_these_rewards_cannot_show_is_said_once() -> None:
    """A reward that is 0 throughout was among healthy segments, with nothing said of it."""
    made = small_record()
    for generation in made.generations:
        rewards = torch.zeros(4, 2)
        rewards[:, 1] = torch.tensor([0.0, 1.0, 0.0, 1.0])
        generation.rewards, generation.reward_calls = rewards, []
    said = "gives each completion 0: these steps cannot show whether it is right"
    assert [note for note in answer_of(made, check(made))["notes"] if note.endswith(said)]
    for generation in made.generations:
        generation.rewards = torch.zeros(4, 2)
    answer = answer_of(made, check(made))
    assert any("gives each completion 0" in each for each in answer["remarks"])
    assert not [note for note in answer["notes"] if note.endswith(said)]


def test_rewards_without_contrast_are_out_of_bound_and_a_chance_draw_is_not() -> None:
    dead = found(record([[0.3] * 4] * 4), "contrast")
    assert not dead.passed
    assert dead.measured["share_of_dead_groups"] == 1
    assert "in 4 of 4 groups not at all" in dead.said
    assert dead.said.endswith("; the reward function 1 gives each completion 0.3")
    assert "gives each" not in found(record([[0.3] * 4, [0.2] * 4]), "contrast").said
    # one group of four has all the contrast: below 0.1 on average, and by chance
    lucky = found(record([[0.0, 0.0, 0.0, 0.6], *[[0.3] * 4] * 3]), "contrast")
    assert lucky.measured["std_within_groups"] < 0.1
    assert lucky.passed


@given(st.floats(0.01, 100), st.floats(-50, 50))
def test_the_scale_of_rewards_does_not_matter(scale: float, shift: float) -> None:
    """Of rewards outside [0, 1] the range is the unit."""
    plain = [[0.0, 10.0, 2.0, 4.0], [5.0, 5.1, 5.0, 5.1], [0.0, 3.0, 9.0, 1.0]]
    other = [[scale * 20 * (each - 50) + shift for each in group] for group in plain]
    for name in ("contrast", "nearly equal rewards"):
        assert found(record(plain), name).passed == found(record(other), name).passed


@pytest.mark.parametrize(("noise", "passed"), [(0.0, True), (0.9, True), (1.1, False)])
def test_noise_is_out_of_bound_where_it_is_more_than_half_of_the_variance_within_groups(
    noise: float, passed: bool
) -> None:
    """Two calls that differ by twice a number each have that number, times the root of 2, as their noise."""
    values = [-1.0, 1.0, -1.0, 1.0]  # their variance is 4/3: of the noise it may be 2/3
    made = record([values, values])
    off = noise * (4 / 3) ** 0.5
    again = [v + off * (1 if n % 2 else -1) for n, v in enumerate(values * 2)]
    made.generations[0].reward_calls = [RewardCall("judge", 0, {}, values * 2, again)]
    one = found(made, "noise of rewards")
    assert one.passed is passed
    assert one.measured["noise"] == pytest.approx(noise * (2 / 3) ** 0.5)
    assert one.measured["std_within_groups"] == pytest.approx((4 / 3) ** 0.5)


def test_groups_of_nearly_equal_rewards_are_weighed_by_their_advantages() -> None:
    rewards = [[0.0, 1.0, 0.0, 1.0], *[[0.50, 0.51, 0.50, 0.51]] * 3]
    made = record(rewards)
    measured = [found(made, "nearly equal rewards").measured]
    spread = torch.tensor(rewards).std(1).repeat_interleave(4)
    made.generations[0].batch = replace(
        batch_of(made), advantages=batch_of(made).advantages / spread
    )
    measured.append(found(made, "nearly equal rewards").measured)
    shares = [each["gradient_share_of_small_spread"] for each in measured]
    assert shares == [pytest.approx(0.0291, rel=0.01), pytest.approx(0.75)]


@pytest.mark.parametrize(("told", "passed"), CASES["a kl term that holds nothing is out of bound"])
def test_a_kl_term_that_holds_nothing_is_out_of_bound(told: dict[str, Any], passed: bool) -> None:
    """arXiv 2506.09477: which estimators have the KL's gradient, and where."""
    kl = found(record(LEARNED, kl_beta=0.04, **told), "KL's gradient")
    assert kl.passed is passed
    if told == {"kl_estimator": "k2"}:
        assert kl.measured["relative_error_far"] < 1e-12


def test_the_same_rows_in_every_generation_and_a_warm_up_that_does_not_end_are_said() -> None:
    made = record(LEARNED, warmup_steps=10, total_steps=10)
    made.generations.append(made.generations[0])
    made.updates.append(Update(optimizer="AdamW"))
    assert not found(made, "rows repeated").passed
    assert not found(made, "schedule").passed


def corrected(weights: list[list[float]], gap: float, lengths: list[int]) -> Record:
    """Return a record of one generation with these importance weights, whose sampler is off by `gap` in every token."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    made = record([[0.0, 1.0]] * (len(lengths) // 2), importance_correction="sequence_mask")
    old = -torch.ones(mask.shape)
    made.generations[0].batch = replace(
        batch_of(made),
        completion_ids=torch.full(mask.shape, WORD),
        completion_mask=mask.long(),
        loss_mask=mask,
        old=old,
        sampler=old - gap,
        importance_weights=torch.tensor(weights),
    )
    return made


@pytest.mark.parametrize(
    ("weights", "gap", "lengths", "said"),
    CASES["what a correction for the sampler costs is measured"],
)
def test_what_a_correction_for_the_sampler_costs_is_measured(
    weights: list[list[float]], gap: float, lengths: list[int], said: str
) -> None:
    one = found(corrected(weights, gap, lengths), "correction")
    assert one.passed == (not said)
    assert said in one.said
    assert one.measured["gap"] == pytest.approx(gap, rel=1e-3)


def test_prompts_that_a_template_makes_the_same_are_said() -> None:
    made = record(LEARNED)
    assert found(made, "distinct prompts").passed
    batch_of(made).prompt_ids.fill_(WORD)
    alike = found(made, "distinct prompts")
    assert alike.measured == {"rows": 16, "in_rows": 4, "in_tokens": 1}
    assert not alike.passed
    assert found(asked(made, "one for all"), "distinct prompts").passed


@pytest.mark.parametrize(
    ("prompt", "passed"),
    [
        ("What is it? It is {own}.", False),
        ("What is it? A0, A1, A2 or A3?", True),
        ("What is it?", True),
        ("word " * 100 + "It is {own}.", None),  # a text to be read
    ],
)
def test_an_answer_that_stands_in_its_own_prompt_alone_is_said(
    prompt: str, passed: bool | None
) -> None:
    made = record(LEARNED)
    for row in made.generations[0].rows:
        row["prompt"] = [{"role": "user", "content": prompt.format(own=row["answer"])}]
    assert passed_in(made).get("answers in prompts") is passed


@pytest.mark.parametrize(("kinds", "calls", "passed"), [(4, 1, False), (3, 1, True), (4, 2, True)])
def test_one_prompt_for_rows_that_differ_is_said_unless_an_environment_goes_on(
    kinds: int, calls: int, passed: bool
) -> None:
    made = record(LEARNED)
    for number, row in enumerate(made.generations[0].rows):
        row |= {"prompt": "{question}", "answer": str(number // 4 % kinds)}
    made.generations[0].calls *= calls
    assert found(made, "distinct prompts").passed is passed


def test_a_reward_of_the_prompt_alone_is_said_by_name_and_a_task_never_solved_is_not() -> None:
    of_prompts = found(record([[float(n)] * 4 for n in range(4)]), "rewards of prompts")
    assert not of_prompts.passed
    assert "the reward function 1 gives all completions of a prompt the same" in of_prompts.said
    assert found(record([[0.0] * 4] * 4), "rewards of prompts").passed
    assert found(record(LEARNED), "rewards of prompts").passed
    assert "rewards of prompts" not in passed_in(record([[0.0] * 4, [1.0] * 4]))


@pytest.mark.parametrize(
    ("rates", "set_to", "steps", "passed"),
    [
        ((1e-6, 1e-6), 1e-3, 0, False),
        ((1e-6, 2e-6), 1e-3, 0, True),
        ((1e-6, 2e-6), 1e-3, 1_000, True),
        # squared, a rate rises too, and never to what is set
        ((1e-6, 2e-6), 1e-3, 4, False),
        ((1e-6, 1e-6), 1e-6, 0, True),
        # of an epoch without its generations; the last step of a training may have no rate
        ((1e-3, 0.0), 1e-3, 8, False),
        ((1e-3, 0.0), 1e-3, 2, True),
    ],
)
def test_a_rate_that_is_squared_or_ends_early_is_said_and_a_warm_up_is_not(
    rates: tuple[float, float], set_to: float, steps: int, passed: bool
) -> None:
    made = record(LEARNED, learning_rate=set_to, total_steps=steps)
    trained(made)
    for update, rate in zip(made.updates, rates, strict=True):
        update.groups = [ParameterGroup(("w",), rate, 0.0)]
    one = found(made, "rate in effect")
    assert one.passed is passed
    ended = one.said.startswith("the rate is 0 in the last recorded step, and 6 steps")
    assert ended == (steps == 8)
    assert passed or ended or f"{max(rates):g}, " in one.said
    assert passed or ended or f"{max(rates) / set_to:g} times the 0.001 that is set" in one.said


def test_weights_that_round_their_updates_away_are_said() -> None:
    for size, passed, share in ((0.0, False, 0), (0.5, True, 0.75)):
        made = record(LEARNED)
        trained(made, moved=size)
        moved = found(made, "weights moved")
        assert (moved.passed, moved.measured["share"]) == (passed, share)


def test_a_kl_term_that_is_most_of_the_gradient_is_said() -> None:
    for beta, passed in ((0.04, True), (1000.0, False)):
        made = record(LEARNED, kl_beta=beta)
        trained(made)
        assert found(made, "KL's share").passed is passed


@pytest.mark.parametrize(
    ("loss", "name", "value", "read"), CASES["a setting that the loss does not read is said"]
)
def test_a_setting_that_the_loss_does_not_read_is_said(
    loss: str, name: str, value: Any, read: bool
) -> None:
    made = record(LEARNED, **{"loss_type": loss, name: value})
    trained(made)
    assert found(made, "settings without effect").passed  # nobody chose it
    made.own = Own(declared={"loss": loss}, chosen=(name,))
    one = found(made, "settings without effect")
    assert one.passed is read
    assert read or f"`{name}` ({value}) set, and without effect" in one.said


@pytest.mark.parametrize(("name", "value"), [("delta", 1.5), ("clip", 0.1), ("epsilon_high", 0.15)])
def test_a_bound_of_the_ratio_of_whole_sequences_is_not_said_to_be_unread(
    name: str, value: float
) -> None:
    """A mean over the tokens of a reply differs less from 1 than the ratio of a token, and reached no bound."""
    told = {"loss_type": "grpo", "importance_sampling_level": "sequence", name: value}
    made = record(LEARNED, **told)
    names = ("completion_ids", "completion_mask", "loss_mask")
    wide = {each: getattr(batch_of(made), each).repeat(1, 40) for each in names}
    made.generations[0].batch = replace(batch_of(made), **wide)
    trained(made)
    made.own = Own(chosen=({"clip": "epsilon"}.get(name, name),))
    assert found(made, "settings without effect").measured == {"set": 1, "without_effect": 0}


def test_the_first_prompt_is_in_its_template_and_ids_that_are_none_break_no_answer() -> None:
    of = small_record()
    whole = "<|im_start|>user\nWhat is 0 plus 1?<|im_end|>\n<|im_start|>assistant\n"
    assert answer_of(of, check(of))["prompt"] == whole
    batch_of(of).prompt_ids[0, -1] = -5
    assert answer_of(of, check(of))["prompt"] is None


def test_a_consequence_whose_code_raises_is_a_note_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is wrong in one: the segments and the other consequences answer, and the exit status is 2."""

    def raises(_: Any) -> None:
        raise KeyError("planted")

    of = record(LEARNED)
    before = answer_of(of, check(of))
    monkeypatch.setitem(CONSEQUENCES, "limits", raises)
    answer = answer_of(of, check(of))
    [line] = answer["failed"]
    assert line.startswith("limits could not be computed: ")
    assert "planted" in line
    assert line in answer["notes"]
    assert status_of(before) != status_of(answer) == 2
    assert len(answer["consequences"]) == len(before["consequences"]) - 1
