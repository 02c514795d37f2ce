"""`rlvr-debug check` on TRL's own trainer: as a user has it, in a notebook and along a run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlvr_debug.checkout import ROOT

trl = pytest.importorskip("trl", reason="trl is not installed: no trainer to check")
datasets = pytest.importorskip("datasets", reason="datasets comes with trl")

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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """(trainer class, **GRPOConfig) -> a trainer of the tiny model; the same arguments make the same one."""
    out = tmp_path_factory.mktemp("trl")

    def build(
        kind: Any = None, reward: Any = length_and_answer, options: Any = None, **told: Any
    ) -> Any:
        from transformers import AutoTokenizer, set_seed

        set_seed(0)
        torch.set_num_threads(1)
        asked = {
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 12,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "beta": 0.04,
            **told,
        }
        config = trl.GRPOConfig(
            output_dir=str(out),
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            **asked,
        )
        return (kind or trl.GRPOTrainer)(
            model=str(TINY),
            reward_funcs=[reward],
            args=config,
            train_dataset=datasets.Dataset.from_list(ROWS),
            processing_class=AutoTokenizer.from_pretrained(str(TINY)),
            **(options or {}),
        )

    return build


def train(trainer: Any) -> None:
    """Train with the random numbers of a process that has just begun."""
    from transformers import set_seed

    set_seed(0)
    trainer.train()


def same_weights(one: Any, other: Any) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


def checked(trainer: Any) -> dict[str, Any]:
    from rlvr_debug.recorders.trl.live import recorded
    from rlvr_debug.replay.store import answered

    return answered(*recorded(trainer, lambda: train(trainer), steps=2, rewards=True))


def statuses(answer: dict[str, Any]) -> dict[str, str]:
    return {each["segment"]: each["status"] for each in answer["segments"]}


@pytest.fixture(scope="module")
def agreed(built: Callable[..., Any]) -> dict[str, Any]:
    """The answer to TRL's trainer as it is."""
    return checked(built())


def test_trl_as_it_is_agrees_in_every_segment_that_it_has(agreed: dict[str, Any]) -> None:
    answer = agreed
    assert answer["first"] is None, answer["answer"]
    assert [s for s, status in statuses(answer).items() if status == "none"] == [
        "tool turns",
        "old log-probabilities",
        "importance weights",
    ]
    assert "not seen" not in statuses(answer).values()
    assert answer["updates"] == 2
    assert max(each["share"] for each in answer["segments"]) < 0.5


def test_an_answer_has_six_digits_of_its_numbers_and_is_the_same_from_another_process(
    agreed: dict[str, Any],
) -> None:
    """The last digits of sums are others where memory lies otherwise, and git would call results changed."""
    answer = agreed
    measured = [value for each in answer["consequences"] for value in each["measured"].values()]
    told = [each[name] for each in answer["segments"] for name in ("share", "deviation")]
    numbers = [each for each in told + measured if isinstance(each, float)]
    assert len(numbers) > 10
    assert [float(f"{each:.6g}") for each in numbers] == numbers


class ByHand:
    """An engine in the place of vLLM's that samples without transformers' `generate`."""

    def __init__(self, trainer: Any, *, syncs: bool) -> None:
        from transformers import AutoModelForCausalLM

        self._trainer, self._syncs = trainer, syncs
        self._model = AutoModelForCausalLM.from_pretrained(str(TINY)).float().eval()

    def sync_weights(self) -> None:
        if self._syncs:
            self._model.load_state_dict(self._trainer.model.state_dict())

    @torch.no_grad()
    def generate(self, prompts: Any, **_: Any) -> Any:
        found = [self._reply(list(prompt)) for prompt in prompts]
        return prompts, [ids for ids, _ in found], [values for _, values in found], None

    def _reply(self, ids: list[int]) -> tuple[list[int], list[list[float]]]:
        start, values = len(ids), []
        while len(ids) < start + 12 and ids[start:][-1:] != [self._trainer._tokenizer.eos_token_id]:
            drawn = self._model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(drawn.exp(), 1)))
            values.append([float(drawn[ids[-1]])])
        return ids[start:], values


@pytest.mark.parametrize("syncs", [True, False])
def test_what_an_engine_samples_by_itself_is_held_to_the_policy(
    built: Callable[..., Any], syncs: bool
) -> None:
    trainer = built(bf16=False, vllm_importance_sampling_mode="token_truncate", learning_rate=0.05)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = ByHand(trainer, syncs=syncs)
    answer = checked(trainer)
    found = statuses(answer)
    assert answer["first"] == (None if syncs else "sampler"), answer["answer"]
    assert [found[name] for name in ("prompt", "tokens", "loss mask")] == ["agrees"] * 3
    assert found["sampling settings"] == "not seen"
    assert "generate" not in vars(trainer.vllm_generation)


def test_no_loss_of_trl_s_is_without_a_reference() -> None:
    import inspect
    import re

    from rlvr_debug.replay.segments.loss_formula import TYPES

    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    compared = re.findall(r'self\.loss_type (?:==|in) (\[[^\]]*\]|"\w+")', source)
    assert {name for text in compared for name in re.findall(r'"(\w+)"', text)} == set(TYPES)


@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo"])
def test_every_loss_of_trl_has_a_reference(built: Callable[..., Any], loss: str) -> None:
    told = {"gradient_accumulation_steps": 2, "num_iterations": 2, "temperature": 0.8}
    answer = checked(built(loss_type=loss, epsilon_high=0.3, entropy_coef=0.01, **told))
    assert answer["first"] is None, answer["answer"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [("AdamW", {"weight_decay": 0.1}), ("Adam", {"weight_decay": 0.1}), ("SGD", {"momentum": 0.9})],
)
def test_an_optimizer_of_the_script_s_own_is_held_to_its_formula(
    built: Callable[..., Any], kind: str, told: dict[str, float]
) -> None:
    trainer = built()
    optimizer = getattr(torch.optim, kind)(trainer.model.parameters(), lr=1e-3, **told)
    trainer.optimizer = optimizer
    trainer.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    answer = checked(trainer)
    assert answer["first"] is None, answer["answer"]
    assert statuses(answer)["optimizer step"] == "agrees"


def test_a_schedule_of_the_script_s_own_that_is_stepped_twice_is_told(
    built: Callable[..., Any],
) -> None:
    from transformers import TrainerCallback

    class Again(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, lr_scheduler: Any, **__: Any) -> None:
            lr_scheduler.step()

    for again, first in ((False, None), (True, "optimizer step")):
        trainer = built()
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3)
        trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            trainer.optimizer, lambda step: max(1 - step / 8, 0)
        )
        if again:
            trainer.add_callback(Again())
        answer = checked(trainer)
        assert answer["first"] == first, answer["answer"]
        assert again == ("the schedule advances 2 steps per update" in answer["answer"])


def test_a_schedule_s_pace_is_of_its_own_counter_and_length() -> None:
    from rlvr_debug.recorders.trl.settings import schedule_pace

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


@pytest.mark.parametrize(
    "mode", ["sequence_mask", "token_truncate", "token_mask", "sequence_truncate"]
)
def test_every_correction_of_trl_for_an_engine_has_a_reference_and_is_measured(
    built: Callable[..., Any], mode: str
) -> None:
    from benchmarks.check.settings.tooling import Engine

    bounds = {"vllm_importance_sampling_clip_max": 1.0} if "mask" in mode else {}
    trainer = built(vllm_importance_sampling_mode=mode, **bounds)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = Engine(trainer)
    answer = checked(trainer)
    assert answer["first"] is None, answer["answer"]
    assert statuses(answer)["importance weights"] == "agrees"
    [measured] = [e["measured"] for e in answer["consequences"] if e["name"] == "correction"]
    assert 0 < measured["gap"] < 0.05  # TRL computes in bfloat16 unless it is told otherwise
    assert measured["effective_sample_size"] > 0
    assert (measured["masked"] > 0) == ("mask" in mode)


def test_an_update_of_several_generations_is_held_to_how_trl_counts_its_tokens(
    built: Callable[..., Any],
) -> None:
    answer = checked(built(steps_per_generation=1, gradient_accumulation_steps=2))
    assert statuses(answer)["loss"] == "agrees", answer["answer"]
    assert answer["generations"] > answer["updates"]


def test_a_reply_is_scored_as_the_tokenizer_s_template_reads_it(built: Callable[..., Any]) -> None:
    template = pytest.importorskip("trl.chat_template_utils").qwen3_template

    def shifted(completions: Any, **_: Any) -> list[float]:
        return [float(len(completion[0]["content"])) for completion in completions]

    trainer = built(reward=shifted, temperature=3.0)
    trainer.processing_class.response_template = template
    answer = checked(trainer)
    assert statuses(answer)["rewards"] == "agrees", answer["answer"]


class Asks:
    """An environment that goes on with the prompt, knows the answer, and counts how often it was begun."""

    begun = 0

    def reset(self, answer: str, **_: Any) -> str:
        self.answer, self.begun = answer, self.begun + 1
        return f" It is not {int(answer) + 1}."


class Says:
    """An environment that holds nothing of a row."""

    begun = 0

    def reset(self, answer: str, **_: Any) -> str:
        self.begun += 1
        return f" It is not {int(answer) + 1}."


def of_environments(completions: Any, environments: Any, **_: Any) -> list[float]:
    texts = [completion[0]["content"] for completion in completions]
    return [
        len(t) % 5 + float(getattr(e, "answer", "1") in t)
        for t, e in zip(texts, environments, strict=True)
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_a_prompt_has_what_its_environment_says_when_it_is_reset(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    one = Says()
    made = built(
        reward=of_environments,
        options={"environment_factory": (lambda: one) if shared else Asks},
    )
    empty = {"prompt": [{"role": "user", "content": ""}], "environment": "a column of the data"}
    rows = [{**row, **empty} for row in ROWS]
    made.train_dataset = datasets.Dataset.from_list(rows)
    answer = checked(made)
    assert answer["first"] is None, answer["answer"]
    assert statuses(answer)["prompt"] == statuses(answer)["rewards"] == "agrees"
    [distinct] = [each for each in answer["consequences"] if each["name"] == "distinct prompts"]
    assert distinct["measured"]["in_rows"] > 1


def test_an_environment_that_other_rows_were_reset_in_is_told(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    one = Asks()
    answer = checked(built(reward=of_environments, options={"environment_factory": lambda: one}))
    assert answer["first"] == "rewards", answer["answer"]
    assert "environments of several rows are one" in [name["name"] for name in answer["names"]]


def test_the_recorded_run_ends_in_the_same_weights_to_the_bit(built: Callable[..., Any]) -> None:
    plain, watched = built(num_iterations=2), built(num_iterations=2)
    train(plain)
    checked(watched)
    assert same_weights(plain, watched)
    assert not same_weights(plain, built())


@pytest.mark.parametrize("own", [False, True])
def test_a_checked_trainer_is_left_as_it_was(
    built: Callable[..., Any], capsys: Any, own: bool
) -> None:
    import rlvr_debug

    first, again = built(), built()
    for trainer in (first, again) if own else ():
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
        trainer.lr_scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2)
    held = first.optimizer
    answer = rlvr_debug.check(first)
    assert "Nothing was found" in capsys.readouterr().out
    assert answer["first"] is None
    assert first.optimizer is held
    for trainer in (first, again):
        train(trainer)
    assert same_weights(first, again)
    assert not same_weights(first, built())


class Negated(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """A trainer whose advantages have the wrong sign."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        out["advantages"] = -out["advantages"]
        return out


class Shifted(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """A trainer whose loss is of something that no variant knows: every third token counts half."""

    def _get_per_token_logps_and_entropies(self, *given: Any, **named: Any) -> Any:
        logps, *rest = super()._get_per_token_logps_and_entropies(*given, **named)
        return (logps + 0.1 * (torch.arange(logps.shape[1]) % 3 == 0), *rest)


class Forgets(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
    """A trainer that keeps of a batch what it knows: not the old log-probabilities, nor which rows these are."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        from rlvr_debug.recorders.trl.objects import ROW

        made = super()._prepare_inputs(inputs)
        unknown = ("old_per_token_logps", ROW)
        return {name: value for name, value in made.items() if name not in unknown}


def test_what_a_hook_on_the_model_changes_of_its_inputs_is_told(built: Callable[..., Any]) -> None:
    def begun_again(_: Any, given: Any, named: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return None
        places = torch.arange(named["input_ids"].shape[1]).repeat(len(named["input_ids"]), 1)
        places[:, -6:] = torch.arange(6)
        return given, {**named, "position_ids": places}

    trainer = built()
    trainer.model.register_forward_pre_hook(begun_again, with_kwargs=True)
    answer = checked(trainer)
    assert answer["first"] == "model inputs", answer["answer"]
    assert [name["name"] for name in answer["names"]] == ["other position ids"]


def test_old_log_probabilities_that_are_lost_on_the_way_to_the_loss_are_told(
    built: Callable[..., Any],
) -> None:
    told = {"num_iterations": 2, "learning_rate": 2e-3, "steps_per_generation": 1}
    answer = checked(built(Forgets, **told))
    assert answer["first"] == "loss", answer["answer"]
    assert "old log-probabilities are ignored" in [name["name"] for name in answer["names"]]
    assert checked(built(**told))["first"] is None


def test_a_fault_of_a_subclass_is_named(built: Callable[..., Any]) -> None:
    answer = checked(built(Negated))
    assert answer["first"] == "advantages"
    assert [name["name"] for name in answer["names"]] == ["sign reversed"]
    assert answer["hypotheses"] == ["group-construction"]


def test_a_fault_without_a_name_is_placed(built: Callable[..., Any]) -> None:
    answer = checked(built(Shifted))
    assert statuses(answer)["policy log-probabilities"] == "deviates"
    assert answer["first"] == "reference log-probabilities"  # made by the same method
    assert answer["names"] == []


def test_a_training_that_runs_a_generation_behind_is_placed_in_its_micro_batches(
    built: Callable[..., Any],
) -> None:
    class Behind(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            before, self.before = getattr(self, "before", made), made
            return before

    answer = checked(built(Behind))
    assert answer["first"] == "micro-batches", answer["answer"]
    assert "generation 2; its batch is that of generation 1" in answer["answer"].lower()
    assert statuses(answer)["tokens"] == statuses(answer)["advantages"] == "agrees"


def test_a_release_that_nobody_tried_is_said() -> None:
    from rlvr_debug.recorders.trl.settings import NEWEST, version_note

    pins = (ROOT / "envs" / "trl.txt").read_text(encoding="utf-8")
    assert f"trl=={NEWEST['trl']}" in pins.split()
    assert "trl 99.0 is newer than" in version_note("trl", "99.0")
    assert not version_note("trl", NEWEST["trl"])
    assert not version_note("trl", "0.14.0")


def test_a_large_model_s_check_says_what_it_needs_and_waits_until_its_trainer_gave_that_back(
    built: Callable[..., Any], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvr_debug.recorders.trl import recorder
    from rlvr_debug.recorders.trl.live import recorded
    from rlvr_debug.recorders.trl.objects import give_back
    from rlvr_debug.replay.answer import timeless
    from rlvr_debug.replay.store import answered as judged

    monkeypatch.setattr(recorder, "_LARGE", 1)
    trainer = built(gradient_accumulation_steps=2)

    def run() -> None:
        assert "GiB of memory beside the script's own" in capsys.readouterr().err
        train(trainer)

    record, ran = recorded(trainer, run, steps=2, rewards=False)
    assert any("GiB of memory" in note for note in record.notes)
    before = judged(record, ran)
    give_back(trainer)
    assert not any(parameter.numel() for parameter in trainer.model.parameters())
    assert not trainer.optimizer.state
    assert timeless(judged(record, ran)) == timeless(before)
    assert before["first"] is None


def test_of_a_large_model_the_first_gradient_that_is_not_0_is_looked_at(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvr_debug.recorders.trl import recorder

    def alike_at_first(completions: Any, trainer_state: Any, **_: Any) -> list[float]:
        return [trainer_state.global_step * len(c[0]["content"]) for c in completions]

    monkeypatch.setattr(recorder, "_LARGE", 1)
    answer = checked(built(reward=alike_at_first, beta=0.0, bf16=False))
    assert answer["first"] is None, answer["answer"]
    [found] = [each for each in answer["segments"] if each["segment"] == "gradient"]
    assert found["share"] > 0


def test_what_a_large_model_s_check_needs_is_the_reference_in_float64_and_a_state_a_step() -> None:
    from rlvr_debug.recorders.trl.objects import needs_of

    needs = needs_of(weights=1000, trained=10, logits=0, steps=3)
    assert needs == (8000, 160)
    assert needs_of(1000, 10, 5, 3)[0] > needs[0]


def test_a_reward_that_is_drawn_is_called_so(built: Callable[..., Any]) -> None:
    import random

    def drawn(completions: Any, **_: Any) -> list[float]:
        return [random.random() for _ in completions]

    answer = checked(built(reward=drawn))
    assert answer["first"] == "rewards"
    assert answer["names"][0]["name"] == "not deterministic"


@pytest.mark.parametrize("noise", [0.02, 1.0])
def test_a_judge_s_noise_is_measured_and_no_deviation(
    built: Callable[..., Any], noise: float
) -> None:
    import random

    def judge(completions: Any, **_: Any) -> list[float]:
        return [len(c[0]["content"]) / 3 + random.gauss(0, noise) for c in completions]

    answer = checked(built(reward=judge, max_completion_length=24))
    assert answer["first"] is None, answer["answer"]
    [found] = [each for each in answer["consequences"] if each["name"] == "noise of rewards"]
    assert found["measured"]["noise"] == pytest.approx(noise, rel=0.5)
    assert found["passed"]


@pytest.mark.parametrize(
    ("training", "flaw", "said"),
    [
        (False, "", None),
        (
            True,
            "",
            "Qwen2ForSequenceClassification is not deterministic: it is a model in training mode",
        ),
        (False, "sorted", "Moving returns the rewards in another order than the completions"),
        # as rewards are in the order in which workers end, another one in each call
        (False, "shuffled", "Moving returns the rewards in another order than the completions"),
    ],
)
def test_a_reward_model_is_recorded_and_called_again_as_a_function_is(
    built: Callable[..., Any], training: bool, flaw: str, said: str | None
) -> None:
    from transformers import AutoConfig, Qwen2ForSequenceClassification

    class Moving(Qwen2ForSequenceClassification):  # type: ignore[misc]
        def forward(self, *given: Any, **named: Any) -> Any:
            out = super().forward(*given, **named)
            drawn = torch.randperm(len(out.logits))
            out.logits = out.logits.sort(0).values if flaw == "sorted" else out.logits[drawn]
            return out

    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(str(TINY), num_labels=1, attention_dropout=0.1)
    judge = (Moving if flaw else Qwen2ForSequenceClassification)(config).train(training)
    torch.nn.init.normal_(judge.score.weight, std=0.5)
    judge.config._name_or_path = str(TINY)
    answer = checked(built(reward=judge))
    assert statuses(answer)["rewards"] == ("deviates" if said else "agrees")
    assert (said or "Nothing was found") in answer["answer"]


def test_reward_functions_that_cost_or_act_are_called_once_where_that_is_asked_for(
    built: Callable[..., Any],
) -> None:
    from rlvr_debug.recorders.trl.live import recorded

    calls: list[int] = []

    def costly(completions: Any, **_: Any) -> list[float]:
        calls.append(len(completions))
        return [float(len(completion[0]["content"]) % 5) for completion in completions]

    trainer = built(reward=costly)
    record, _ = recorded(trainer, lambda: train(trainer), steps=2, rewards=False)
    every = [call for generation in record.generations for call in generation.reward_calls]
    assert len(every) == len(record.generations) == 2
    assert all(call.again is None for call in every)
    assert len(calls) == len(every)


def test_a_long_run_is_checked_every_so_many_steps(built: Callable[..., Any]) -> None:
    from rlvr_debug.recorders.trl.live import LiveCheck

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
