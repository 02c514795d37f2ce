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
