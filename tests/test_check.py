"""`rlvr-debug check` on TRL's own trainer: as a user has it, in a notebook and along a run."""

import inspect
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

import datasets
import trl
from transformers import (
    AutoConfig,
    AutoTokenizer,
    Qwen2ForSequenceClassification,
    TrainerCallback,
    set_seed,
)
from trl.chat_template_utils import qwen3_template

import rlvr_debug
from benchmarks.check.case import Case
from benchmarks.check.faults import FAULTS
from benchmarks.check.faults.ways import LOGPS, method
from benchmarks.check.settings.tooling import Engine
from rlvr_debug.checkout import ROOT
from rlvr_debug.recorders.trl import recorder
from rlvr_debug.recorders.trl.live import LiveCheck, recorded
from rlvr_debug.recorders.trl.objects import ROW, give_back, needs_of
from rlvr_debug.recorders.trl.settings import NEWEST, schedule_pace, version_note
from rlvr_debug.replay.answer import answer_text, timeless
from rlvr_debug.replay.segments.loss_formula import TYPES
from rlvr_debug.replay.store import answered

TINY = ROOT / "models" / "tiny"
ROWS = [
    {"prompt": [{"role": "user", "content": f"What is {a} plus {b}?"}], "answer": str(a + b)}
    for a in range(4)
    for b in range(4)
]


def length_and_answer(completions: Any, answer: Any, **_: Any) -> list[float]:
    """Return a reward that differs within groups of the tiny model."""
    texts = [completion[0]["content"] for completion in completions]
    return [len(t) % 5 + float(a in t) for t, a in zip(texts, answer, strict=True)]


OUT = TemporaryDirectory(prefix="trl-")
LEFT_OUT = "the evaluations are long and were left out; what they leave behind was not seen"


def built(
    kind: Any = None, reward: Any = length_and_answer, options: Any = None, **told: Any
) -> Any:
    """(trainer class, **GRPOConfig) -> a trainer of the tiny model; the same arguments make the same one."""
    set_seed(0)
    torch.set_num_threads(1)
    asked: dict[str, Any] = {"num_generations": 4, "max_completion_length": 12, "max_steps": 2}
    asked |= {"per_device_train_batch_size": 8, "learning_rate": 1e-3, "beta": 0.04}
    asked |= {
        "output_dir": OUT.name,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    config = trl.GRPOConfig(**{**asked, **told})
    return (kind or trl.GRPOTrainer)(
        model=str(TINY),
        reward_funcs=[reward],
        args=config,
        train_dataset=datasets.Dataset.from_list(ROWS),
        processing_class=AutoTokenizer.from_pretrained(str(TINY)),
        **(options or {}),
    )


def overriding(name: str) -> Callable[[Any], Any]:
    """Have a function of trainer, usual method and arguments stand for a method: a decorator that returns a trainer."""
    way: Any = method(name)  # type: ignore[no-untyped-call]
    return lambda change: way(Case(None, (), (), {}), change).trainer


def train(trainer: Any) -> None:
    """Train with the random numbers of a process that has just begun."""
    set_seed(0)
    trainer.train()


def same_weights(one: Any, other: Any) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


def checked(trainer: Any) -> dict[str, Any]:
    return answered(*recorded(trainer, lambda: train(trainer), steps=2, rewards=True))


def placed(trainer: Any, first: str | None = None) -> dict[str, Any]:
    """Return the answer of a check in which this segment has to be the first that deviates, or none."""
    answer = checked(trainer)
    assert answer["first"] == first, answer["answer"]
    return answer


def statuses(answer: Mapping[str, Any]) -> dict[str, str]:
    return {each["segment"]: each["status"] for each in answer["segments"]}


def names(answer: dict[str, Any]) -> list[str]:
    return [each["name"] for each in answer["names"]]


def consequence(answer: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [each for each in answer["consequences"] if each["name"] == name]
    assert isinstance(found, dict)
    return found


def test_trl_as_it_is_agrees_in_every_segment_that_it_has() -> None:
    answer = placed(built())
    assert [s for s, status in statuses(answer).items() if status == "none"] == [
        "tool turns",
        "old log-probabilities",
        "importance weights",
    ]
    assert "not seen" not in statuses(answer).values()
    assert answer["updates"] == 2
    assert max(each["share"] for each in answer["segments"]) < 0.5
    # git would call results changed: the last digits of sums are others where memory lies otherwise
    told = [value for each in answer["consequences"] for value in each["measured"].values()]
    told += [each[name] for each in answer["segments"] for name in ("share", "deviation")]
    numbers = [each for each in told if isinstance(each, float)]
    assert len(numbers) > 10
    assert [float(f"{each:.6g}") for each in numbers] == numbers


@torch.no_grad()
def by_hand(model: Any, ids: list[int], most: int, end: int = -1) -> tuple[list[int], list[float]]:
    """Sample without transformers' `generate`; return tokens and their log-probabilities."""
    reply: list[int] = []
    values: list[float] = []
    while len(reply) < most and reply[-1:] != [end]:
        drawn = model(torch.tensor([ids + reply])).logits[0, -1].float().log_softmax(-1)
        reply.append(int(torch.multinomial(drawn.exp(), 1)))
        values.append(float(drawn[reply[-1]]))
    return reply, values


class ByHand(Engine):
    """An engine in the place of vLLM's that samples by itself, and may keep old weights."""

    syncs = True

    def sync_weights(self) -> None:
        if self.syncs:
            super().sync_weights()

    def generate(self, prompts: Any, *_: Any, **__: Any) -> Any:
        end = self.trainer._tokenizer.eos_token_id
        found = [by_hand(self.model, prompt, 12, end) for prompt in prompts]
        values = [[[each] for each in row] for _, row in found]
        return prompts, [ids for ids, _ in found], values, None


class Stale(ByHand):
    syncs = False


@pytest.mark.parametrize(("kind", "first"), [(ByHand, None), (Stale, "sampler")])
def test_what_an_engine_samples_by_itself_is_held_to_the_policy(
    kind: Any, first: str | None
) -> None:
    trainer = built(bf16=False, vllm_importance_sampling_mode="token_truncate", learning_rate=0.05)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = kind(trainer)
    found = statuses(placed(trainer, first))
    assert {found[name] for name in ("prompt", "tokens", "loss mask")} == {"agrees"}
    assert found["importance weights"] == "agrees"
    assert found["sampling settings"] == "not seen"
    assert "generate" not in vars(trainer.vllm_generation)


@pytest.mark.parametrize(
    "mode", ["sequence_mask", "token_truncate", "token_mask", "sequence_truncate"]
)
def test_every_correction_of_trl_for_an_engine_has_a_reference_and_is_measured(mode: str) -> None:
    bounds = {"vllm_importance_sampling_clip_max": 1.0} if "mask" in mode else {}
    trainer = built(vllm_importance_sampling_mode=mode, **bounds)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = Engine(trainer)
    answer = placed(trainer)
    assert statuses(answer)["importance weights"] == "agrees"
    cost = consequence(answer, "correction")["measured"]
    assert 0 < cost["gap"] < 0.05  # TRL computes in bfloat16 unless it is told otherwise
    assert cost["effective_sample_size"] > 0
    assert (cost["masked"] > 0) == ("mask" in mode)


def test_no_loss_of_trl_s_is_without_a_reference() -> None:
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    compared = re.findall(r'self\.loss_type (?:==|in) (\[[^\]]*\]|"\w+")', source)
    assert {name for text in compared for name in re.findall(r'"(\w+)"', text)} == set(TYPES)


@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo"])
def test_every_loss_of_trl_has_a_reference(loss: str) -> None:
    told = {"gradient_accumulation_steps": 2, "num_iterations": 2, "temperature": 0.8}
    placed(built(loss_type=loss, epsilon_high=0.3, entropy_coef=0.01, **told))


def test_an_optimizer_of_the_script_s_own_is_held_to_its_formula() -> None:
    trainer = built()
    optimizer = torch.optim.Adam(trainer.model.parameters(), lr=1e-3, weight_decay=0.1)
    trainer.optimizer = optimizer
    trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    assert statuses(placed(trainer))["optimizer step"] == "agrees"


class Descends(trl.GRPOTrainer):  # type: ignore[misc]
    momentum = 0.9

    def create_optimizer(self, *_: Any) -> Any:
        rate = self.args.learning_rate
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=self.momentum)
        return self.optimizer


class Crawls(Descends):
    momentum = 0.0


@pytest.mark.parametrize(
    ("kind", "rate", "first"),
    [(Descends, 1e-3, None), (Crawls, 0.05, None), (Crawls, 1e-3, "optimizer step")],
)
def test_descent_that_a_method_makes_is_meant_but_for_plain_descent_at_adam_s_rate(
    kind: Any, rate: float, first: str | None
) -> None:
    placed(built(kind, learning_rate=rate), first)


class Sorts(trl.GRPOTrainer):  # type: ignore[misc]
    """It sorts whole rows by the length of their replies."""

    left_behind: tuple[str, ...] = ()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        order = batch["completion_mask"].sum(1).argsort(descending=True, stable=True)
        assert order.tolist() != [*range(len(order))]
        rows = (n for n, t in batch.items() if torch.is_tensor(t) and t.dim())
        return {**batch, **{n: batch[n][order] for n in rows if n not in self.left_behind}}


class SortsButAdvantages(Sorts):
    left_behind = ("advantages",)


@pytest.mark.parametrize(("kind", "first"), [(Sorts, None), (SortsButAdvantages, "advantages")])
def test_rows_that_are_sorted_after_they_were_scored_are_followed(
    kind: Any, first: str | None
) -> None:
    told = {"num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    placed(built(kind, **told), first)


class Again(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, *_: Any, lr_scheduler: Any, **__: Any) -> None:
        lr_scheduler.step()


@pytest.mark.parametrize(
    ("callbacks", "first"), [([], None), ([Again], "optimizer step")], ids=["once", "twice"]
)
def test_a_schedule_of_the_script_s_own_that_is_stepped_twice_is_told(
    callbacks: list[Any], first: str | None
) -> None:
    trainer = built(options={"callbacks": callbacks})
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3)
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
        trainer.optimizer, lambda step: max(1 - step / 8, 0)
    )
    answer = placed(trainer, first)
    assert bool(callbacks) == ("the schedule advances 2 steps per update" in answer["answer"])


def test_a_schedule_s_pace_is_of_its_own_counter_and_length() -> None:
    kinds = torch.optim.lr_scheduler

    class Own(kinds.LambdaLR):
        """It may advance by itself."""

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    plain = kinds.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    assert schedule_pace(plain, [0, 2, 4], 10) == 2
    assert schedule_pace(plain, [10, 11, 12], 20) == 1
    assert schedule_pace(kinds.CosineAnnealingLR(optimizer, 10), [0, 2, 4], 10) == 2
    assert schedule_pace(kinds.CosineAnnealingLR(optimizer, 20), [0, 2, 4], 10) == 1
    assert schedule_pace(Own(optimizer, lambda step: 1.0), [0, 2, 4], 10) == 1
    assert schedule_pace(kinds.ReduceLROnPlateau(optimizer), [0, 2, 4], 10) == 1


def test_an_update_of_several_generations_is_held_to_how_trl_counts_its_tokens() -> None:
    answer = checked(built(steps_per_generation=1, gradient_accumulation_steps=2))
    assert statuses(answer)["loss"] == "agrees", answer["answer"]
    assert answer["generations"] > answer["updates"]


def lengths(completions: Any, **_: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


def test_a_reply_is_scored_as_the_tokenizer_s_template_reads_it() -> None:
    trainer = built(reward=lengths, temperature=3.0)
    trainer.processing_class.response_template = qwen3_template
    answer = checked(trainer)
    assert statuses(answer)["rewards"] == "agrees", answer["answer"]


class Says:
    """An environment that goes on with the prompt, counts how often it was begun, and holds nothing of a row."""

    begun = 0

    def reset(self, answer: str, **_: Any) -> str:
        self.begun += 1
        return f" It is not {int(answer) + 1}."


class Asks(Says):
    """One that knows the answer too."""

    def reset(self, answer: str, **_: Any) -> str:
        self.answer = answer
        return super().reset(answer)


def with_environments(factory: Any) -> Any:
    def scored(completions: Any, environments: Any, **_: Any) -> list[float]:
        answers = [getattr(each, "answer", "1") for each in environments]
        return length_and_answer(completions, answers)

    return built(reward=scored, options={"environment_factory": factory})


@pytest.mark.parametrize("shared", [False, True])
def test_a_prompt_has_what_its_environment_says_when_it_is_reset(shared: bool) -> None:
    one = Says()
    made = with_environments((lambda: one) if shared else Asks)
    empty = {"prompt": [{"role": "user", "content": ""}], "environment": "a column of the data"}
    made.train_dataset = datasets.Dataset.from_list([{**row, **empty} for row in ROWS])
    answer = placed(made)
    assert statuses(answer)["prompt"] == statuses(answer)["rewards"] == "agrees"
    assert consequence(answer, "distinct prompts")["measured"]["in_rows"] > 1


def test_an_environment_that_other_rows_were_reset_in_is_told() -> None:
    one = Asks()
    answer = placed(with_environments(lambda: one), "rewards")
    assert "environments of several rows are one" in names(answer)


@pytest.mark.parametrize("own", [False, True])
def test_a_checked_trainer_is_left_as_it_was(capsys: Any, own: bool) -> None:
    first, again = built(), built()
    for trainer in (first, again) if own else ():
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
        trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2)
    held = first.optimizer
    answer = rlvr_debug.check(first)
    assert "Nothing was found" in capsys.readouterr().out
    assert statuses(answer)["optimizer step"] == "agrees"
    assert first.optimizer is held
    for trainer in (first, again):
        train(trainer)
    assert same_weights(first, again)
    assert not same_weights(first, built())


# --- faults


@overriding("_generate_and_score_completions")
def negated(_: Any, usual: Any, inputs: Any) -> Any:
    made = usual(inputs)
    return {**made, "advantages": -made["advantages"]}


@overriding(LOGPS)
def shifted(_: Any, usual: Any, *given: Any, **named: Any) -> Any:
    """Have every third token count half, which no variant knows."""
    logps, *rest = usual(*given, **named)
    return (logps + 0.1 * (torch.arange(logps.shape[1]) % 3 == 0), *rest)


@overriding("_prepare_inputs")
def forgets(_: Any, usual: Any, rows: Any) -> Any:
    """Keep of a batch what the trainer knows: not the old log-probabilities, nor which rows these are."""
    unknown = ("old_per_token_logps", ROW)
    return {name: value for name, value in usual(rows).items() if name not in unknown}


class LosesLater(trl.GRPOTrainer):  # type: ignore[misc]
    """It frees the old log-probabilities after their first use, in a batch that is used again."""

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        loss = super().compute_loss(model, inputs, *given, **named)
        inputs.pop("old_per_token_logps", None)
        return loss


@pytest.mark.parametrize(
    ("fault", "first", "named", "said"),
    [
        (negated, "advantages", ["sign reversed"], ""),
        # the reference's are made by the same method
        (shifted, "reference log-probabilities", [], ""),
        (
            *("batch-of-the-generation-before", "micro-batches", []),
            "generation 2; its batch is that of generation 1",
        ),
        ("positions-begin-again", "model inputs", ["other position ids"], ""),
    ],
)
def test_a_fault_is_placed_and_named_where_it_has_a_name(
    fault: Any, first: str, named: list[str], said: str
) -> None:
    plain = Case(None, (), (), {})
    case = FAULTS[fault].planted(plain) if fault in FAULTS else replace(plain, trainer=fault)
    trainer = built(case.trainer)
    for step in case.after:
        step(trainer)
    answer = placed(trainer, first)
    assert names(answer) == named
    assert fault is not negated or answer["hypotheses"] == ["group-construction"]
    assert said in answer["answer"].lower()
    found = statuses(answer)
    assert (found["policy log-probabilities"] == "deviates") == (fault is shifted)
    assert found["tokens"] == "agrees"


def test_old_log_probabilities_that_are_lost_on_the_way_to_the_loss_are_told() -> None:
    told = {"num_iterations": 2, "learning_rate": 2e-3, "steps_per_generation": 1}
    answer = placed(built(forgets, **told), "loss")
    assert "old log-probabilities are ignored" in names(answer)
    placed(built(**told))
    answer = placed(built(LosesLater, **told), "micro-batches")
    assert "First in update 2; old log-probabilities are missing" in answer["answer"]


class Served(trl.GRPOTrainer):  # type: ignore[misc] # trl's types are not read
    """It evaluates at the temperature of the deployment, and leaves it behind."""

    def evaluate(self, *given: Any, **named: Any) -> Any:
        self.generation_config.temperature = 0.3
        return super().evaluate(*given, **named)


@pytest.mark.parametrize(("rows", "first"), [(2, "sampling settings"), (3, None)])
def test_what_an_evaluation_leaves_behind_is_told_and_a_long_one_left_out_and_said(
    rows: int, first: str | None
) -> None:
    few = datasets.Dataset.from_list(ROWS[:rows])
    told = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    answer = placed(built(Served, options={"eval_dataset": few}, **told), first)
    assert [n for n in answer["notes"] if "evaluations" in n] == ([] if first else [LEFT_OUT])
    answer = placed(built(options={"eval_dataset": few}, **told))
    assert ", in tokens " in answer_text(answer, verbose=True)


def test_a_release_that_nobody_tried_is_said() -> None:
    pins = (ROOT / "envs" / "trl.txt").read_text(encoding="utf-8")
    assert f"trl=={NEWEST['trl']}" in pins.split()
    assert "trl 99.0 is newer than" in version_note("trl", "99.0")
    assert not version_note("trl", NEWEST["trl"])
    assert not version_note("trl", "0.14.0")


def test_a_large_model_s_check_says_what_it_needs_and_waits_until_its_trainer_gave_that_back(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_LARGE", 1)
    trainer = built(gradient_accumulation_steps=2)

    def run() -> None:
        assert "GiB of memory beside the script's own" in capsys.readouterr().err
        train(trainer)

    record, ran = recorded(trainer, run, steps=2, rewards=False)
    assert any("GiB of memory" in note for note in record.notes)
    before = answered(record, ran)
    give_back(trainer)
    assert not any(parameter.numel() for parameter in trainer.model.parameters())
    assert not trainer.optimizer.state
    assert timeless(answered(record, ran)) == timeless(before)
    assert before["first"] is None


def test_of_a_large_model_the_first_gradient_that_is_not_0_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alike_at_first(completions: Any, trainer_state: Any, **_: Any) -> list[float]:
        return [trainer_state.global_step * each for each in lengths(completions)]

    monkeypatch.setattr(recorder, "_LARGE", 1)
    answer = placed(built(reward=alike_at_first, beta=0.0, bf16=False))
    [found] = [each for each in answer["segments"] if each["segment"] == "gradient"]
    assert found["share"] > 0


def test_what_a_large_model_s_check_needs_is_the_reference_in_float64_and_a_state_a_step() -> None:
    needs = needs_of(weights=1000, trained=10, logits=0, steps=3)
    assert needs == (8000, 160)
    assert needs_of(1000, 10, 5, 3)[0] > needs[0]


# --- rewards


def test_a_reward_that_is_drawn_is_called_so() -> None:
    def drawn(completions: Any, **_: Any) -> list[float]:
        return [random.random() for _ in completions]

    assert names(placed(built(reward=drawn), "rewards"))[0] == "not deterministic"


@pytest.mark.parametrize("noise", [0.02, 1.0])
def test_a_judge_s_noise_is_measured_and_no_deviation(noise: float) -> None:
    def judge(completions: Any, **_: Any) -> list[float]:
        return [each / 3 + random.gauss(0, noise) for each in lengths(completions)]

    answer = placed(built(reward=judge, max_completion_length=24))
    found = consequence(answer, "noise of rewards")
    assert found["measured"]["noise"] == pytest.approx(noise, rel=0.5)
    assert found["passed"]


class Moving(Qwen2ForSequenceClassification):  # type: ignore[misc]
    """A reward model that returns rewards in the order in which workers end: sorted, or another one in each call."""

    sorted = False

    def forward(self, *given: Any, **named: Any) -> Any:
        out = super().forward(*given, **named)
        drawn = torch.randperm(len(out.logits))
        out.logits = out.logits.sort(0).values if self.sorted else out.logits[drawn]
        return out


class Sorting(Moving):
    sorted = True


@pytest.mark.parametrize(
    ("kind", "training", "said"),
    [
        (Qwen2ForSequenceClassification, False, "Nothing was found"),
        (Qwen2ForSequenceClassification, True, "not deterministic: it is a model in training mode"),
        (Sorting, False, "Sorting returns the rewards in another order than the completions"),
        (Moving, False, "Moving returns the rewards in another order than the completions"),
    ],
)
def test_a_reward_model_is_recorded_and_called_again_as_a_function_is(
    kind: Any, training: bool, said: str
) -> None:
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(str(TINY), num_labels=1, attention_dropout=0.1)
    judge = kind(config).train(training)
    torch.nn.init.normal_(judge.score.weight, std=0.5)
    judge.config._name_or_path = str(TINY)
    answer = placed(built(reward=judge), None if said == "Nothing was found" else "rewards")
    assert said in answer["answer"]


def test_reward_functions_that_cost_or_act_are_called_once_where_that_is_asked_for() -> None:
    calls: list[int] = []

    def costly(completions: Any, **_: Any) -> list[float]:
        calls.append(len(completions))
        return lengths(completions)

    trainer = built(reward=costly)
    record, _ = recorded(trainer, lambda: train(trainer), steps=2, rewards=False)
    every = [call for generation in record.generations for call in generation.reward_calls]
    assert len(every) == len(record.generations) == 2
    assert all(call.again is None for call in every)
    assert len(calls) == len(every)


def test_a_long_run_is_checked_every_so_many_steps() -> None:
    trainer, plain = built(max_steps=5, logging_steps=1), built(max_steps=5, logging_steps=1)
    callback = LiveCheck(trainer, every=2)
    trainer.add_callback(callback)
    train(trainer)
    train(plain)
    assert trainer.state.global_step == 5
    assert [answer["first"] for answer in callback.answers] == [None, None, None]
    logged = [row["check/deviates"] for row in trainer.state.log_history if "check/deviates" in row]
    assert logged == [0.0, 0.0, 0.0]
    assert same_weights(plain, trainer)
