"""A check of a trainer with code of its user's: unusual code that is right is no fault, and what is wrong in it is placed."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

import datasets
import trl
from transformers import TrainerCallback

import rlvr_debug
from tests.test_check import ROWS, built, checked, statuses

__all__ = ["built"]


class Kernel(trl.GRPOTrainer):  # type: ignore[misc]
    """Computes log-probabilities from the head's weights, as fused kernels do, and leaves the last words out."""

    words: int | None = None

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Any, mask: Any, keep: int, *_: Any, **__: Any
    ) -> Any:
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        logits = hidden[:, -keep - 1 : -1] @ model.lm_head.weight.T
        chosen = logits.gather(2, ids[:, -keep:, None])[..., 0]
        logprobs = chosen - logits[..., : self.words].logsumexp(-1)
        return logprobs, torch.zeros_like(logprobs), None


@pytest.mark.parametrize(
    ("words", "first"), [(None, None), (-37, "policy log-probabilities")], ids=["all", "some"]
)
def test_a_pass_of_the_model_without_its_head_is_seen(
    built: Callable[..., Any], words: int | None, first: str | None
) -> None:
    trainer = built(Kernel, beta=0.0)
    trainer.words = words
    answer = checked(trainer)
    assert answer["first"] == first, answer["answer"]
    assert "not seen" not in statuses(answer).values()


def test_what_keeps_a_run_from_learning_is_the_answer_and_its_own_mend_is_next(
    built: Callable[..., Any],
) -> None:
    """It ended in "Nothing was found", or in the advice to raise the limit of completions."""
    still = checked(built(learning_rate=0.0))
    assert (still["first"], still["next"]) == ("effect", "set `learning_rate` above 0.")
    trainer = built()
    trainer.processing_class.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    answer = checked(trainer)
    assert answer["first"] is None
    assert answer["answer"].startswith("No segment deviates, but ")
    assert "and 1 as the policy reads them" in answer["answer"]
    assert answer["next"].startswith("print `apply_chat_template(")


def test_weights_that_a_callback_freezes_are_told(built: Callable[..., Any]) -> None:
    """The optimizer's step and the sampler could not be computed, by a KeyError."""

    class Freezes(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            model.get_input_embeddings().weight.requires_grad_(False)

    answer = checked(built(options={"callbacks": [Freezes()]}))
    assert not {"could not be computed", "not seen"} & {*statuses(answer).values()}


class Chunks(trl.GRPOTrainer):  # type: ignore[misc]
    """Computes log-probabilities of two rows at a time, without the columns that are padding in both."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Any, mask: Any, keep: int, *_: Any, **__: Any
    ) -> Any:
        found = []
        for part, read in zip(ids.split(2), mask.split(2), strict=True):
            first = int(read.argmax(1).min())
            logits = model(input_ids=part[:, first:], attention_mask=read[:, first:]).logits
            logprobs = logits[:, -keep - 1 : -1].log_softmax(-1)
            found.append(logprobs.gather(2, part[:, -keep:, None])[..., 0])
        return torch.cat(found), torch.zeros(len(ids), keep), None


def test_parts_of_a_batch_that_were_cut_to_their_longest_rows_are_one_pass(
    built: Callable[..., Any],
) -> None:
    trainer = built(Chunks)
    long = [
        {**row, "prompt": [{"role": "user", "content": "And " * n}]} for n, row in enumerate(ROWS)
    ]
    trainer.train_dataset = datasets.Dataset.from_list(long)
    answer = checked(trainer)
    assert answer["first"] is None, answer["answer"]
    assert "not seen" not in statuses(answer).values()


class Windows(trl.GRPOTrainer):  # type: ignore[misc]
    """Computes log-probabilities of two rows at a time, the longest first, each pair cut on both sides."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Any, mask: Any, keep: int, *_: Any, **__: Any
    ) -> Any:
        found, order, width = [], mask.sum(1).argsort(descending=True), mask.shape[1]
        for rows in order.split(2):
            used = mask[rows].any(0).nonzero()[:, 0]
            first, end = int(used[0]), int(used[-1]) + 1
            window = {"input_ids": ids[rows, first:end], "attention_mask": mask[rows, first:end]}
            logits = model(**window).logits[:, width - keep - 1 - first : -1]
            chosen = logits.log_softmax(-1).gather(2, ids[rows, width - keep : end, None])[..., 0]
            found.append(torch.nn.functional.pad(chosen, (0, width - end)))
        return torch.cat(found)[order.argsort()], torch.zeros(len(ids), keep), None


class Trims(trl.GRPOTrainer):  # type: ignore[misc]
    """Leaves columns that are padding in all rows out before it computes the loss."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        left, right = (int(inputs[f"{n}_mask"].sum(1).max()) for n in ("prompt", "completion"))
        parts = {n: inputs[n][:, -left:] for n in ("prompt_ids", "prompt_mask")}
        names = ("completion_ids", "completion_mask", "ref_per_token_logps")
        parts |= {n: inputs[n][:, :right] for n in names if inputs.get(n) is not None}
        return super()._compute_loss(model, {**inputs, **parts})


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


class Scales(trl.GRPOTrainer):  # type: ignore[misc]
    """Multiplies the loss for the backward pass, and divides gradients by it before the clip, after it, or never."""

    when = "before"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        backward = self.accelerator.backward
        self.accelerator.backward = lambda loss, **more: backward(loss * 64, **more)

    def divide(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad /= 64

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.when == "before":
            self.divide()
        found = super()._clip_grad_norm(model)
        if self.when == "after":
            self.divide()
        return found


@pytest.mark.parametrize("kind", [Windows, Trims, Offloads])
def test_what_saves_memory_and_computes_the_same_agrees(
    built: Callable[..., Any], kind: Any
) -> None:
    """They were called faults of the model's inputs and of the gradient, or four segments were not seen."""
    trainer = built(kind, gradient_accumulation_steps=2, max_completion_length=16)
    long = [
        {**row, "prompt": [{"role": "user", "content": "And " * n}]} for n, row in enumerate(ROWS)
    ]
    trainer.train_dataset = datasets.Dataset.from_list(long)
    answer = checked(trainer)
    assert answer["first"] is None, answer["answer"]
    assert "not seen" not in statuses(answer).values()


@pytest.mark.parametrize("limit", [0.1, 1e3], ids=["clipped", "not clipped"])
@pytest.mark.parametrize(("when", "first"), [("before", None), ("after", "clip"), ("", "loss")])
def test_a_loss_scale_is_no_fault_where_it_is_taken_out_before_the_clip(
    built: Callable[..., Any], when: str, first: str | None, limit: float
) -> None:
    trainer = built(Scales, max_grad_norm=limit)
    trainer.when = when
    answer = checked(trainer)
    # a gradient that is not clipped is the same whenever it is divided
    expected = None if (when, limit) == ("after", 1e3) else first
    assert answer["first"] == expected, answer["answer"]


def test_a_declared_loss_that_raises_leaves_the_other_segments_their_answers(
    built: Callable[..., Any],
) -> None:
    """Whether a loss is scaled is asked before any segment: it ended the check."""
    rlvr_debug.expect(loss=lambda given: given.nothing)
    try:
        answer = checked(built(Scales))
    finally:
        rlvr_debug.expect()
    assert statuses(answer)["loss"] in ("could not be computed", "not seen")
    assert statuses(answer)["policy log-probabilities"] == "agrees"


@pytest.mark.parametrize(("count", "first"), [(1, None), (0, "optimizer step")])
def test_a_state_that_comes_back_from_elsewhere_counts_its_steps_on(
    built: Callable[..., Any], count: int, first: str | None
) -> None:
    """Offloaded moments that were put back with step 0 agreed: nothing of the last step's state was there to compare."""

    class Offload(TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
            self.held = {p: dict(held) for p, held in optimizer.optimizer.state.items()}
            optimizer.optimizer.state.clear()

        def on_pre_optimizer_step(self, *_: Any, optimizer: Any, **__: Any) -> None:
            for parameter, held in getattr(self, "held", {}).items():
                step = held["step"] if count else torch.zeros(())
                optimizer.optimizer.state[parameter] = {**held, "step": step}

    answer = checked(built(options={"callbacks": [Offload()]}))
    assert answer["first"] == first, answer["answer"]


def test_a_pass_that_reads_on_from_a_cache_is_not_seen(built: Callable[..., Any]) -> None:
    class Cached(trl.GRPOTrainer):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(
            self, model: Any, ids: Any, mask: Any, keep: int, *_: Any, **__: Any
        ) -> Any:
            before = model(input_ids=ids[:, :-keep], attention_mask=mask[:, :-keep], use_cache=True)
            after = model(
                input_ids=ids[:, -keep:],
                attention_mask=mask,
                past_key_values=before.past_key_values,
                use_cache=True,
            )
            logits = torch.cat([before.logits[:, -1:], after.logits[:, :-1]], 1)
            chosen = logits.log_softmax(-1).gather(2, ids[:, -keep:, None])[..., 0]
            return chosen, torch.zeros_like(chosen), None

    answer = checked(built(Cached, beta=0.0, gradient_checkpointing=False))
    assert answer["first"] is None, answer["answer"]
    assert statuses(answer)["model inputs"] == "not seen"


class Packed(trl.GRPOTrainer):  # type: ignore[misc]
    """Computes log-probabilities of all rows in one sequence, the shortest first, set apart by their positions."""

    masked = False

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Any, mask: Any, keep: int, *_: Any, **__: Any
    ) -> Any:
        order = mask.sum(1).argsort()
        read = mask[order].bool()
        packed, places = ids[order][read][None], (mask[order].cumsum(1) - 1)[read][None]
        masks = {"attention_mask": torch.ones_like(packed)} if self.masked else {}
        given = {"position_ids": places, "use_cache": False, **masks}
        logits = model(input_ids=packed, **given).logits[0, :-1]
        chosen = logits.log_softmax(-1).gather(1, packed[0, 1:, None])[:, 0]
        rows = torch.zeros(ids.shape).masked_scatter(read, torch.cat([chosen[:1], chosen]))
        return rows[order.argsort(), -keep:], torch.zeros(len(ids), keep), None


@pytest.mark.parametrize(
    ("masked", "first"), [(False, None), (True, "model inputs")], ids=["apart", "in one mask"]
)
def test_rows_in_one_sequence_are_read_as_rows_where_nothing_lets_them_read_each_other(
    built: Callable[..., Any], masked: bool, first: str | None
) -> None:
    """Padding-free passes were called other tokens than the batch's, and ended in an IndexError."""
    trainer = built(Packed, beta=0.0)
    trainer.masked = masked
    answer = checked(trainer)
    assert answer["first"] == first, answer["answer"]
    assert "could not be computed" not in statuses(answer).values()
    assert ("not seen" in statuses(answer).values()) == masked


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


def test_groups_of_an_own_optimizer_have_multiples_of_the_rate_and_its_options(
    built: Callable[..., Any],
) -> None:
    class Drifts(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, *_: Any, **named: Any) -> None:
            if state.global_step:
                named["optimizer"].param_groups[1]["lr"] *= 1.5

    for kind in (torch.optim.AdamW, torch.optim.NAdam):
        trainer = built(Grouped)
        trainer.kind = kind
        answer = checked(trainer)
        assert answer["first"] is None, answer["answer"]
    plain = built(Grouped)
    plain.kind = lambda groups, **_: torch.optim.SGD(
        [{name: group[name] for name in ("params", "lr")} for group in groups]
    )
    assert "made by SGD, AdamW was asked for" in checked(plain)["answer"]
    chosen = checked(built(Grouped, optim="adagrad"))
    assert chosen["first"] == "optimizer step"
    assert "AdamW, Adagrad was asked for" in chosen["answer"]
    drifting = checked(built(Grouped, options={"callbacks": [Drifts()]}))
    assert drifting["first"] == "optimizer step", drifting["answer"]
    asked = checked(built(Grouped, adam_beta2=0.95))
    assert asked["first"] == "optimizer step"
    assert "learning rate" not in asked["answer"]
    still = built(Grouped)
    still.times = 0.0
    assert checked(still)["first"] == "optimizer step"


def test_settings_that_a_callback_changes_are_those_of_their_steps(
    built: Callable[..., Any],
) -> None:
    """An adaptive KL and a curriculum of rewards were called faults of the loss and of the advantages."""

    class Adapts(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            trainer.beta *= 4
            trainer.epsilon_high = 0.3
            trainer.reward_weights = trainer.reward_weights * 0.5

    trainer = built(options={"callbacks": [Adapts()]}, scale_rewards="none")
    answer = checked(trainer)
    assert answer["first"] is None, answer["answer"]
    [said] = [each for each in answer["consequences"] if each["name"] == "settings changed"]
    assert said["said"] == (
        "`reward_weights` went from 1 to 0.5, `beta` went from 0.04 to 0.16, `epsilon_high` went from 0.2 to 0.3"
    )


class Heated(trl.GRPOTrainer):  # type: ignore[misc]
    """Computes log-probabilities at the temperature that it has now; TRL keeps that of its arguments."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, ids: Any, mask: Any, keep: int, *_: Any, **__: Any
    ) -> Any:
        logits = model(input_ids=ids, attention_mask=mask).logits / self.temperature
        logprobs = logits[:, -keep - 1 : -1].log_softmax(-1).gather(2, ids[:, -keep:, None])[..., 0]
        return logprobs, torch.zeros_like(logprobs), None


@pytest.mark.parametrize(
    ("sides", "first"),
    [
        (("trainer", "sampler"), None),
        (("trainer",), "sampling settings"),
        (("sampler",), "sampling settings"),
    ],
    ids=["both", "log-probabilities alone", "the sampler alone"],
)
def test_a_temperature_that_is_annealed_is_no_fault_where_both_sides_have_it(
    built: Callable[..., Any], sides: tuple[str, ...], first: str | None
) -> None:
    class Anneals(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            heat = 1.0 - 0.1 * trainer.state.global_step
            if "trainer" in sides:
                trainer.temperature = heat
            if "sampler" in sides:
                trainer.generation_config.temperature = heat

    trainer = built(Heated, options={"callbacks": [Anneals()]})
    answer = checked(trainer)
    assert answer["first"] == first, answer["answer"]
    said = [e["said"] for e in answer["consequences"] if e["name"] == "settings changed"]
    assert said == (["`temperature` went from 1 to 0.9"] if "trainer" in sides else [])


class Redraws(trl.GRPOTrainer):  # type: ignore[misc]
    """Samples and scores twice, and trains on the first draw, or on a group of each."""

    parts = (0, 0)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        draws = [super(Redraws, self)._generate_and_score_completions(inputs) for _ in range(2)]
        width = max(draw["completion_ids"].shape[1] for draw in draws)
        size, found = self.num_generations, {}
        pad_id = self.processing_class.pad_token_id
        for name, value in draws[0].items():
            if not isinstance(value, torch.Tensor) or not value.dim():
                found[name] = value
                continue
            groups = []
            for number, draw in enumerate(self.parts):
                own = draws[draw][name][size * number : size * (number + 1)]
                fill = pad_id if name == "completion_ids" else 0
                more = width - own.shape[-1] if name.startswith("completion") else 0
                groups.append(torch.nn.functional.pad(own, (0, more), value=fill))
            found[name] = torch.cat(groups)
        return {**found, "num_items_in_batch": found["completion_mask"].sum()}


@pytest.mark.parametrize("parts", [(0, 0), (1, 0)], ids=["the first", "of both"])
def test_rollouts_that_are_drawn_again_have_the_rewards_of_their_draw(
    built: Callable[..., Any], parts: tuple[int, int]
) -> None:
    """Dynamic sampling was called a fault of the rewards: those of the last draw were held against the first's completions."""
    trainer = built(Redraws, beta=0.0)
    trainer.parts = parts
    answer = checked(trainer)
    assert answer["first"] is None, answer["answer"]
    assert statuses(answer)["rewards"] == "agrees"
    assert any("rollouts were sampled and not trained on" in note for note in answer["notes"])


class Replays(trl.GRPOTrainer):  # type: ignore[misc]
    """Trains in its second step on the rollouts of the first, with the second's advantages."""

    first: Any = None

    def _prepare_inputs(self, given: Any) -> Any:
        batch = super()._prepare_inputs(given)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        with torch.no_grad():
            made = self._get_per_token_logps_and_entropies(
                self.model, ids, mask, batch["completion_ids"].shape[1]
            )
        batch = {**batch, "old_per_token_logps": made[0]}
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        kept = {name: batch[name] for name in (*names, "old_per_token_logps")}
        before, self.first = self.first, self.first or kept
        return {**batch, **(before or {})}


def test_old_log_probabilities_of_replayed_rollouts_are_of_the_weights_that_sampled_them(
    built: Callable[..., Any],
) -> None:
    """They were called those of the update before, and the wrong advantages were told after it."""
    answer = checked(built(Replays, beta=0.0))
    assert answer["first"] == "micro-batches", answer["answer"]
    assert statuses(answer)["old log-probabilities"] == "agrees"


def test_a_trainer_that_saves_what_it_saved_first_is_told(built: Callable[..., Any]) -> None:
    class Keeps(trl.GRPOTrainer):  # type: ignore[misc]
        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            super()._save(output_dir, state_dict=self.first_state)

        @cached_property
        def first_state(self) -> Any:
            return {name: value.clone() for name, value in self.model.state_dict().items()}

    answer = checked(built(Keeps))
    assert answer["first"] == "saved weights"
    assert "the weights of the beginning" in str(answer["answer"])
