"""A check of a trainer with code of its user's: unusual code that is right is no fault, and what is wrong in it is placed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

import datasets
import trl
from transformers import TrainerCallback

import rlvr_debug
from benchmarks.check.faults.ways import LOGPS
from rlvr_debug.replay.answer import answer_text
from tests.test_check import (
    ROWS,
    built,
    checked,
    consequence,
    names,
    overriding,
    placed,
    statuses,
)

GROWING = [
    {**row, "prompt": [{"role": "user", "content": "And " * n}]} for n, row in enumerate(ROWS)
]


def computing(of: Callable[..., Any]) -> Any:
    """Return a trainer whose log-probabilities are what a function computes of its model, ids, mask and count."""

    def computed(_: Any, __: Any, *given: Any, **___: Any) -> Any:
        found = of(*given[:4])
        return found, torch.zeros_like(found), None

    return overriding(LOGPS)(computed)


def read(model: Any, ids: Any, mask: Any, keep: int, *, heat: float = 1.0) -> Any:
    """Return the log-probabilities of the last tokens, by a whole pass of the model."""
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -keep - 1 : -1] / heat
    return chosen(logits.log_softmax(-1), ids[:, -keep:])


def chosen(of_all: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return of_all.gather(-1, wanted[..., None])[..., 0]


def without_head(model: Any, ids: Any, mask: Any, keep: int, *, words: Any = None) -> Any:
    """Read from the head's weights, as fused kernels do, and leave the last words out."""
    hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = hidden[:, -keep - 1 : -1] @ model.lm_head.weight.T
    return chosen(logits, ids[:, -keep:]) - logits[..., :words].logsumexp(-1)


def windows(model: Any, ids: Any, mask: Any, keep: int) -> Any:
    """Read two rows at a time, the longest first, each pair cut on both sides."""
    found, order, width = [], mask.sum(1).argsort(descending=True), mask.shape[1]
    for rows in order.split(2):
        used = mask[rows].any(0).nonzero()[:, 0]
        first, end = int(used[0]), int(used[-1]) + 1
        part = read(model, ids[rows, first:end], mask[rows, first:end], keep - width + end)
        found.append(torch.nn.functional.pad(part, (0, width - end)))
    return torch.cat(found)[order.argsort()]


def packed(model: Any, ids: Any, mask: Any, keep: int, *, masked: bool = False) -> Any:
    """Read all rows in one sequence, the shortest first, set apart by their positions."""
    order = mask.sum(1).argsort()
    real = mask[order].bool()
    one, places = ids[order][real][None], (mask[order].cumsum(1) - 1)[real][None]
    masks = {"attention_mask": torch.ones_like(one)} if masked else {}
    logits = model(input_ids=one, position_ids=places, use_cache=False, **masks).logits[0, :-1]
    found = chosen(logits.log_softmax(-1), one[0, 1:])
    rows = torch.zeros(ids.shape).masked_scatter(real, torch.cat([found[:1], found]))
    return rows[order.argsort(), -keep:]


def from_cache(model: Any, ids: Any, mask: Any, keep: int, *, learned: bool = True) -> Any:
    """Read on from a cache of the prompt; learned: which has a gradient."""
    with torch.set_grad_enabled(learned and torch.is_grad_enabled()):
        before = model(input_ids=ids[:, :-keep], attention_mask=mask[:, :-keep], use_cache=True)
    told = {"past_key_values": before.past_key_values, "use_cache": True}
    after = model(input_ids=ids[:, -keep:], attention_mask=mask, **told)
    logits = torch.cat([before.logits[:, -1:], after.logits[:, :-1]], 1)
    return chosen(logits.log_softmax(-1), ids[:, -keep:])


@overriding("_compute_loss")
def trims(_: Any, usual: Any, model: Any, inputs: Any) -> Any:
    """Leave columns that are padding in all rows out before the loss is computed."""
    left, right = (int(inputs[f"{n}_mask"].sum(1).max()) for n in ("prompt", "completion"))
    parts = {n: inputs[n][:, -left:] for n in ("prompt_ids", "prompt_mask")}
    names = ("completion_ids", "completion_mask", "ref_per_token_logps")
    parts |= {n: inputs[n][:, :right] for n in names if inputs.get(n) is not None}
    return usual(model, {**inputs, **parts})


class Offloads(trl.GRPOTrainer):  # type: ignore[misc]
    """Takes gradients away as they are made, and puts them back for the clip."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.held: dict[Any, Any] = {}
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self.take)

    def take(self, parameter: Any) -> None:
        self.held[parameter] = self.held.get(parameter, 0) + parameter.grad
        parameter.grad = None

    def _clip_grad_norm(self, model: Any) -> Any:
        for parameter, gradient in self.held.items():
            parameter.grad = gradient
        self.held = {}
        return super()._clip_grad_norm(model)


@pytest.mark.parametrize(
    ("kind", "beta"),
    [
        (computing(without_head), 0.0),
        (computing(windows), 0.04),
        # padding-free passes ended in an IndexError
        (computing(packed), 0.0),
        (trims, 0.04),
        (Offloads, 0.04),
    ],
    ids=["without head", "windows", "packed", "trims", "offloads"],
)
def test_what_saves_memory_and_computes_the_same_agrees(kind: Any, beta: float) -> None:
    """They were called faults of the model's inputs and of the gradient, or four segments were not seen."""
    trainer = built(kind, gradient_accumulation_steps=2, max_completion_length=16, beta=beta)
    trainer.train_dataset = datasets.Dataset.from_list(GROWING)
    assert not {"not seen", "could not be computed"} & {*statuses(placed(trainer)).values()}


@pytest.mark.parametrize(
    ("of", "first", "unseen"),
    [
        (partial(without_head, words=-37), "policy log-probabilities", False),
        # rows that can read each other
        (partial(packed, masked=True), "model inputs", True),
        (from_cache, None, False),
        (partial(from_cache, learned=False), "gradient", False),
    ],
    ids=["words left out", "packed in one mask", "from a cache", "from a constant cache"],
)
def test_a_pass_of_other_words_or_other_inputs_is_told_or_not_seen(
    of: Any, first: str | None, unseen: bool
) -> None:
    found = statuses(placed(built(computing(of), beta=0.0, gradient_checkpointing=False), first))
    assert "could not be computed" not in found.values()
    assert ("not seen" in found.values()) == unseen


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda rewards: rewards, "agrees"),
        (lambda rewards: rewards.roll(1, 0), "deviates"),
        (lambda rewards: rewards / 2, "not seen"),
    ],
    ids=["as they are", "of other rows", "scaled"],
)
def test_rewards_of_functions_that_an_override_calls_by_itself_are_held_to_their_rows(
    change: Callable[[torch.Tensor], torch.Tensor], status: str
) -> None:
    """They were not seen, whatever the override did: gathering them over ranks in another order, say."""

    @overriding("_calculate_rewards")
    def calls(self: Any, _: Any, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        columns = {name: [row[name] for row in inputs] for name in inputs[0] if name != "prompt"}
        given = {"prompts": prompts, "completions": completions, "completion_ids": ids, **columns}
        return change(torch.tensor([function(**given) for function in self.reward_funcs]).T)

    answer = placed(built(calls), "rewards" if status == "deviates" else None)
    assert statuses(answer)["rewards"] == status


def test_what_keeps_a_run_from_learning_is_the_answer_and_its_own_mend_is_next() -> None:
    """It ended in "Nothing was found", or in the advice to raise the limit of completions."""
    still = placed(built(learning_rate=0.0), "effect")
    assert still["next"] == "set `learning_rate` above 0."
    trainer = built()
    trainer.processing_class.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    answer = placed(trainer)
    assert answer["answer"].startswith("No segment deviates, but ")
    assert "and 1 as the policy reads them" in answer["answer"]
    assert answer["next"].startswith("print `apply_chat_template(")
    # once, with its mend under Next
    said = answer_text(answer)
    assert said.count("as the policy reads them") == said.count("print `apply_chat_template(") == 1
    assert "  distinct prompts: see below." in said


class Scales(trl.GRPOTrainer):  # type: ignore[misc]
    """Multiplies the loss for the backward pass, and divides gradients by it before the clip, after it, or never."""

    when = "before"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        backward = self.accelerator.backward
        self.accelerator.backward = lambda loss, **more: backward(loss * 64, **more)

    def divide(self, when: str) -> None:
        for parameter in self.model.parameters() if when == self.when else ():
            parameter.grad /= 64

    def _clip_grad_norm(self, model: Any) -> Any:
        self.divide("before")
        found = super()._clip_grad_norm(model)
        self.divide("after")
        return found


@pytest.mark.parametrize(
    ("when", "limit", "first"),
    [
        ("before", 0.1, None),
        ("before", 1e3, None),
        ("after", 0.1, "clip"),
        # a gradient that is not clipped is the same whenever it is divided
        ("after", 1e3, None),
        ("", 0.1, "loss"),
        ("", 1e3, "loss"),
    ],
)
def test_a_loss_scale_is_no_fault_where_it_is_taken_out_before_the_clip(
    when: str, limit: float, first: str | None
) -> None:
    trainer = built(Scales, max_grad_norm=limit)
    trainer.when = when
    placed(trainer, first)


def test_a_declared_loss_that_raises_leaves_the_other_segments_their_answers() -> None:
    """Whether a loss is scaled is asked before any segment: it ended the check."""
    rlvr_debug.expect(loss=lambda given: given.nothing)
    try:
        answer = checked(built(Scales))
    finally:
        rlvr_debug.expect()
    assert statuses(answer)["loss"] in ("could not be computed", "not seen")
    assert statuses(answer)["policy log-probabilities"] == "agrees"


# --- callbacks


class Freezes(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        model.get_input_embeddings().weight.requires_grad_(False)


def test_weights_that_a_callback_freezes_are_told() -> None:
    """The optimizer's step and the sampler could not be computed, by a KeyError."""
    answer = checked(built(options={"callbacks": [Freezes()]}))
    assert not {"could not be computed", "not seen"} & {*statuses(answer).values()}


class Offload(TrainerCallback):  # type: ignore[misc]
    """Takes the optimizer's state away after each step, and puts it back before the next, its steps counted or not."""

    def __init__(self, *, counted: bool) -> None:
        self.counted = counted

    def on_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
        self.held = {p: dict(held) for p, held in optimizer.optimizer.state.items()}
        optimizer.optimizer.state.clear()

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
        for parameter, held in getattr(self, "held", {}).items():
            step = held["step"] if self.counted else torch.zeros(())
            optimizer.optimizer.state[parameter] = {**held, "step": step}


@pytest.mark.parametrize(("counted", "first"), [(True, None), (False, "optimizer step")])
def test_a_state_that_comes_back_from_elsewhere_counts_its_steps_on(
    counted: bool, first: str | None
) -> None:
    """Offloaded moments that were put back with step 0 agreed: nothing of the last step's state was there to compare."""
    placed(built(options={"callbacks": [Offload(counted=counted)]}), first)


class Adapts(TrainerCallback):  # type: ignore[misc]
    trainer: Any

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.beta *= 4
        self.trainer.epsilon_high = 0.3
        self.trainer.reward_weights = self.trainer.reward_weights * 0.5


def test_settings_that_a_callback_changes_are_those_of_their_steps() -> None:
    """An adaptive KL and a curriculum of rewards were called faults of the loss and of the advantages."""
    callback = Adapts()
    callback.trainer = built(options={"callbacks": [callback]}, scale_rewards="none")
    assert consequence(placed(callback.trainer), "settings changed")["said"] == (
        "`reward_weights` went from 1 to 0.5, `beta` went from 0.04 to 0.16, `epsilon_high` went from 0.2 to 0.3"
    )


class Anneals(TrainerCallback):  # type: ignore[misc]
    """Lowers the temperature of the trainer, which TRL reads of its arguments, or of the sampler, or of both."""

    trainer: Any

    def __init__(self, sides: tuple[str, ...]) -> None:
        self.sides = sides

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        both = {"trainer": self.trainer, "sampler": self.trainer.generation_config}
        for side in self.sides:
            both[side].temperature = 1.0 - 0.1 * self.trainer.state.global_step


@pytest.mark.parametrize(
    ("sides", "first"),
    [
        (("trainer", "sampler"), None),
        (("trainer",), "sampling settings"),
        (("sampler",), "sampling settings"),
    ],
)
def test_a_temperature_that_is_annealed_is_no_fault_where_both_sides_have_it(
    sides: tuple[str, ...], first: str | None
) -> None:
    callback = Anneals(sides)
    heated = computing(lambda *given: read(*given[:4], heat=callback.trainer.temperature))
    callback.trainer = built(heated, options={"callbacks": [callback]})
    answer = placed(callback.trainer, first)
    said = [e["said"] for e in answer["consequences"] if e["name"] == "settings changed"]
    assert said == (["`temperature` went from 1 to 0.9"] if "trainer" in sides else [])


# --- an optimizer with groups of its own


class Grouped(trl.GRPOTrainer):  # type: ignore[misc]
    """Has norms learn four times as fast, with options of its own."""

    times = 4.0
    kind: Any = torch.optim.AdamW

    def create_optimizer(self, model: Any = None) -> Any:
        named = [*(model or self.model).named_parameters()]
        norms, rest = ([p for n, p in named if ("norm" in n) is so] for so in (True, False))
        rate = self.args.learning_rate
        groups = [
            {"params": rest, "lr": rate},
            {"params": norms, "lr": self.times * rate, "betas": (0.7, 0.9)},
        ]
        self.optimizer = self.kind(groups, betas=(0.8, 0.99), weight_decay=0.05)
        return self.optimizer


class OfNAdam(Grouped):
    kind = torch.optim.NAdam


class Uphill(Grouped):
    kind = partial(torch.optim.AdamW, maximize=True)


class Forgets(Grouped):
    @staticmethod
    def kind(groups: Any, **_: Any) -> Any:
        return torch.optim.AdamW(groups, betas=(0.999, 0.9))


class OfSGD(Grouped):
    @staticmethod
    def kind(groups: Any, **_: Any) -> Any:
        return torch.optim.SGD([{name: each[name] for name in ("params", "lr")} for each in groups])


class Still(Grouped):
    times = 0.0


class Drifts(TrainerCallback):  # type: ignore[misc]
    def on_pre_optimizer_step(self, args: Any, state: Any, *_: Any, **named: Any) -> None:
        if state.global_step:
            named["optimizer"].param_groups[1]["lr"] *= 1.5


@pytest.mark.parametrize(
    ("kind", "told", "first", "said"),
    [
        (Grouped, {}, None, ""),
        (OfNAdam, {}, None, ""),
        (OfSGD, {}, "optimizer step", "made by SGD, AdamW was asked for"),
        (Uphill, {}, "optimizer step", ""),
        (Forgets, {}, "optimizer step", ""),
        (Grouped, {"optim": "adagrad"}, "optimizer step", "AdamW, Adagrad was asked for"),
        (Grouped, {"options": {"callbacks": [Drifts()]}}, "optimizer step", ""),
        (Grouped, {"adam_beta2": 0.95}, "optimizer step", ""),
        (Still, {}, "optimizer step", ""),
    ],
)
def test_groups_of_an_own_optimizer_have_multiples_of_the_rate_and_its_options(
    kind: Any, told: dict[str, Any], first: str | None, said: str
) -> None:
    answer = placed(built(kind, **told), first)
    assert said in answer["answer"]
    assert "adam_beta2" not in told or "learning rate" not in answer["answer"]


# --- rollouts of more than one draw


def redrawing(parts: tuple[int, int]) -> Any:
    """Return a trainer that samples and scores twice, and trains on one of the draws for each of its two groups."""

    def made(trainer: Any, usual: Any, inputs: Any) -> Any:
        draws = [usual(inputs) for _ in range(2)]
        width = max(draw["completion_ids"].shape[1] for draw in draws)
        fill = {"completion_ids": trainer.processing_class.pad_token_id}
        found = dict(draws[0])
        for name, value in found.items():
            if isinstance(value, torch.Tensor) and value.dim():
                each = draws[parts[0]][name][:4], draws[parts[1]][name][4:]
                more = width if name.startswith("completion") else 0
                found[name] = torch.cat([padded(p, more, fill.get(name, 0)) for p in each])
        return {**found, "num_items_in_batch": found["completion_mask"].sum()}

    return overriding("_generate_and_score_completions")(made)


def padded(part: torch.Tensor, width: int, fill: int) -> torch.Tensor:
    return torch.nn.functional.pad(part, (0, width - part.shape[-1] if width else 0), value=fill)


@pytest.mark.parametrize("parts", [(0, 0), (1, 0)], ids=["the first", "of both"])
def test_rollouts_that_are_drawn_again_have_the_rewards_of_their_draw(
    parts: tuple[int, int],
) -> None:
    """Dynamic sampling was called a fault of the rewards: those of the last draw were held against the first's completions."""
    answer = placed(built(redrawing(parts), beta=0.0))
    assert statuses(answer)["rewards"] == "agrees"
    assert any("rollouts were sampled and not trained on" in note for note in answer["notes"])


@overriding("_prepare_inputs")
def replays(trainer: Any, usual: Any, given: Any) -> Any:
    """Train in the second step on the rollouts of the first, with the second's advantages."""
    batch = usual(given)
    ids, mask = (
        torch.cat([batch[f"{part}_{name}"] for part in ("prompt", "completion")], 1)
        for name in ("ids", "mask")
    )
    with torch.no_grad():
        count = batch["completion_ids"].shape[1]
        made, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, count)
    batch = {**batch, "old_per_token_logps": made}
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    before = getattr(trainer, "first", {})
    trainer.first = before or {name: batch[name] for name in (*names, "old_per_token_logps")}
    return {**batch, **before}


def test_old_log_probabilities_of_replayed_rollouts_are_of_the_weights_that_sampled_them() -> None:
    """They were called those of the update before, and the wrong advantages were told after it."""
    answer = placed(built(replays, beta=0.0), "micro-batches")
    assert statuses(answer)["old log-probabilities"] == "agrees"


@overriding("_save")
def keeps(trainer: Any, usual: Any, *given: Any, **_: Any) -> None:
    """Save the weights of the first save each time."""
    if not hasattr(trainer, "first"):
        trainer.first = {n: value.clone() for n, value in trainer.model.state_dict().items()}
    usual(*given[:1], state_dict=trainer.first)


def test_a_trainer_that_saves_what_it_saved_first_is_told() -> None:
    answer = placed(built(keeps), "saved weights")
    assert "the weights of the beginning" in answer["answer"]


def generating(prompts: Any, trainer: Any) -> dict[str, Any]:
    """Roll out by the policy's own `generate`, as it stands in training."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    told = {"add_generation_prompt": True, "return_dict": False}
    rows = [tokenizer.apply_chat_template(prompt, **told) for prompt in prompts]
    width = max(map(len, rows))
    pads = [[tokenizer.pad_token_id] * (width - len(row)) for row in rows]
    ids = torch.tensor([pad + row for pad, row in zip(pads, rows, strict=True)])
    mask = torch.tensor([[0] * len(pad) + [1] * (width - len(pad)) for pad in pads])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=trainer.generation_config,
        return_dict_in_generate=True,
        output_scores=True,
    )
    new = out.sequences[:, width:]
    logprobs = chosen(torch.stack(out.scores, 1).log_softmax(-1), new).tolist()
    counts = [(*(each == tokenizer.eos_token_id), True).index(True) + 1 for each in new]
    return {
        "prompt_ids": rows,
        "completion_ids": [row[:count] for row, count in zip(new.tolist(), counts, strict=True)],
        "logprobs": [row[:count] for row, count in zip(logprobs, counts, strict=True)],
    }


@pytest.mark.parametrize(("checkpointing", "first"), [(False, None), (True, "sampler")])
def test_generate_under_gradient_checkpointing_is_told_from_generate_without(
    checkpointing: bool, first: str | None
) -> None:
    """A rollout function of an outsider's healthy script sampled each token from the one before it alone, which its author did not know."""
    trainer = built(
        gradient_checkpointing=checkpointing, options={"rollout_func": generating}, bf16=False
    )
    trainer.train_dataset = datasets.Dataset.from_list(GROWING)
    answer = placed(trainer, first)
    if first:
        assert names(answer) == ["each token is drawn from the one before it alone"]
        assert "gradient_checkpointing_disable()" in answer["next"]
