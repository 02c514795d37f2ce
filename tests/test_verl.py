"""What verl's driver holds as a record: rows in any order, padding, several replies, settings. verl itself is not needed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.recorders.verl.batches import Step, asked_of, generation_of, updates_of
from rlvr_debug.recorders.verl.recorder import watch_v1_trainer
from rlvr_debug.recorders.verl.worker import Told, watch_engine, write, written
from rlvr_debug.replay.check import check
from rlvr_debug.replay.record import TOKENS, Record
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.replay.store import read_record, write_record
from rlvr_debug.verl import main
from tests.in_process import called
from tests.small_record import bare_record

PROMPT, WIDTH, SIZE = 5, 6, 4
GRPO: dict[str, Any] = {"scale_rewards": "group", "advantage_epsilon": 1e-6}
SETTINGS = Settings(SIZE, Sampling(), WIDTH, **GRPO, eos_ids=(9,), pad_id=0)


def made(groups: int = 3, *, turns: bool = False) -> Step:
    """Return a step that GRPO's formula made, with replies of different lengths."""
    count = groups * SIZE
    generator = torch.Generator().manual_seed(groups)
    long = torch.randint(1, PROMPT + 1, (groups,), generator=generator).repeat_interleave(SIZE)
    wide = torch.randint(3, WIDTH + 1, (count,), generator=generator)
    read = torch.arange(PROMPT) >= PROMPT - long[:, None]
    wrote = torch.arange(WIDTH) < wide[:, None]
    counted = wrote.clone()
    if turns:
        counted[:, 1] = False
    prompts = (torch.arange(groups).repeat_interleave(SIZE) + 1)[:, None] * read
    responses = torch.randint(1, 9, (count, WIDTH), generator=generator) * wrote
    scores = torch.zeros(count, WIDTH)
    scores[torch.arange(count), wide - 1] = torch.rand(count, generator=generator)
    grouped = scores.sum(1).view(groups, SIZE)
    gains = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)
    sampled = {
        "prompts": prompts,
        "responses": responses,
        "attention_mask": torch.cat([read, wrote], 1).long(),
        "response_mask": counted.long(),
        "rollout_log_probs": -torch.rand(count, WIDTH, generator=generator) * counted,
        "rm_scores": scores,
    }
    trained = sampled | {
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "advantages": gains.view(-1, 1) * counted,
    }
    uids = [f"group {n // SIZE}" for n in range(count)]
    rows = [{"prompt": [{"role": "user", "content": uid}]} for uid in uids]
    return Step(trained, sampled, uids, rows, [turns] * count, again=scores.sum(1).tolist())


def in_order(step: Step, order: list[int]) -> Step:
    """Return the step as a driver has it that has put its rows into another order, as balancing does."""

    def ordered(held: Any) -> Any:
        if isinstance(held, dict):
            return {name: tensor[order] for name, tensor in held.items()}
        return held and [held[n] for n in order]

    names = ("trained", "sampled", "uids", "rows", "several", "again")
    return replace(step, **{name: ordered(getattr(step, name)) for name in names})


def changed(step: Step, **tensors: Tensor) -> Step:
    return replace(step, trained={**step.trained, **tensors})


def recorded(*steps: Step) -> Record:
    return bare_record(settings=SETTINGS, generations=[generation_of(s, SIZE) for s in steps])


def found(record: Record) -> dict[str, str]:
    return {each.segment: each.status for each in check(record).findings}


SEEN = ("groups", "tokens", "loss mask", "rewards", "advantages")


@given(st.permutations(range(12)), st.booleans())
def test_whatever_order_balancing_puts_rows_into_a_step_agrees(
    order: list[int], turns: bool
) -> None:
    segments = found(recorded(in_order(made(turns=turns), order)))
    assert {name: segments[name] for name in SEEN} == dict.fromkeys(SEEN, "agrees")


@pytest.mark.parametrize(
    ("segment", "fault"),
    [
        ("groups", lambda step: replace(step, uids=[*step.uids[1:], step.uids[0]])),
        ("tokens", lambda step: changed(step, responses=step.trained["responses"].roll(1, 0))),
        (
            "loss mask",
            lambda step: changed(step, response_mask=step.trained["attention_mask"][:, PROMPT:]),
        ),
        (
            "rewards",
            lambda step: changed(step, token_level_rewards=step.sampled["rm_scores"].roll(1, 0)),
        ),
        ("rewards", lambda step: replace(step, again=[*step.again[1:], step.again[0]])),
        ("advantages", lambda step: changed(step, advantages=-step.trained["advantages"])),
    ],
)
def test_a_fault_of_the_driver_is_seen_first_in_its_segment(segment: str, fault: Any) -> None:
    segments = found(recorded(in_order(fault(made(turns=True)), [*range(12)][::-1])))
    assert next(name for name, status in segments.items() if status == "deviates") == segment


def test_a_group_that_lost_a_row_is_left_out_unless_all_groups_are_of_another_size() -> None:
    step = in_order(made(3), [*range(11)])
    assert len(generation_of(step, SIZE).rows) == 2 * SIZE
    assert step.notes == [f"3 rows of groups of another size than {SIZE} are left out"]
    mixed = in_order(made(3), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11])
    alone = recorded(replace(mixed, uids=[str(n) for n in range(12)]))
    assert found(alone)["groups"] == "deviates"


def test_columns_of_nothing_but_padding_are_cut() -> None:
    held = made().trained
    short = {name: held[name].clone() for name in ("attention_mask", "response_mask")}
    for mask in short.values():
        mask[:, -2:] = 0
    batch = generation_of(changed(made(), **short), SIZE).batch
    assert batch is not None
    assert batch.completion_ids.shape[1] == WIDTH - 2
    assert int(batch.prompt_mask[:, 0].sum()) > 0


def test_each_reply_of_a_row_is_a_call_of_its_own() -> None:
    step = made(1, turns=True)
    first, second = generation_of(step, SIZE).calls
    for row in range(SIZE):
        ids = [*step.sampled["responses"][row][step.sampled["attention_mask"][row, PROMPT:].bool()]]
        assert first.outputs[row] == [int(ids[0])]
        assert second.prompts[row][-2:] == [int(n) for n in ids[:2]]
        assert second.outputs[row] == [int(n) for n in ids[2:]]
        assert len(second.logprobs[row]) == len(second.outputs[row])


def test_where_the_weights_of_a_step_are_not_known_its_log_probabilities_are_not_looked_at(
    tmp_path: Path, random_model: Any
) -> None:
    model = random_model(0)
    held = {name: parameter.detach() for name, parameter in model.named_parameters()}
    step = changed(made(), old_log_probs=torch.zeros(12, WIDTH))  # which are wrong
    told: Any = {"weights": [held], "trainable": tuple(held)}
    record = replace(recorded(step), build=lambda: type(model)(model.config), **told)
    [generation] = record.generations
    # what the trainer was told of the sampler is held to what that had, whatever the weights
    for weights, wanted in ((0, ("deviates", "deviates")), (None, ("none", "agrees"))):
        generation.weights = weights
        generation.calls = [replace(call, weights=weights) for call in generation.calls]
        write_record(record, tmp_path / str(weights))
        segments = found(read_record(tmp_path / str(weights)))
        assert (segments["old log-probabilities"], segments["sampler"]) == wanted


def trained(step: Step, folder: Path, order: Sequence[int] = range(12), workers: int = 2) -> Step:
    """Return the step with what workers wrote of one update by PPO's loss, averaged over tokens; each has two backward passes."""
    generator = torch.Generator().manual_seed(9)
    old = -1 - torch.rand(len(order), WIDTH, generator=generator)
    policy = (old + torch.randn(old.shape, generator=generator) / 4).requires_grad_()
    held = {**step.trained, "old_log_probs": old}
    gains, mask = held["advantages"], held["response_mask"]
    ratio = (policy - old).exp()
    gain = torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
    [gradient] = torch.autograd.grad(-(gain * mask).sum() / mask.sum(), policy)
    held |= {"log_probs": policy.detach(), "log_probs.grad": gradient}
    held = {name: held[name] for name in held if name not in ("rm_scores", "rollout_log_probs")}
    folder.mkdir()
    size = len(order) // workers
    for rank in range(workers):
        own = order[rank * size : (rank + 1) * size]
        halves = (own[: size // 2], own[size // 2 :])
        write([{n: t[rows] for n, t in held.items()} for rows in halves], folder, rank, workers)
    return replace(changed(step, old_log_probs=old), updates=written(folder))


def recorded_loss(step: Step) -> Record:
    asked = replace(SETTINGS, tokens_counted="rows", micro_batches=4, steps_per_generation=4)
    record = replace(recorded(step), settings=asked)
    return replace(record, updates=updates_of(step, record.generations[0], 0))


@given(st.permutations(range(12)))
def test_what_several_workers_wrote_is_one_update_of_one_loss(
    tmp_path_factory: pytest.TempPathFactory, order: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("written") / "workers"
    segments = found(recorded_loss(trained(made(), folder, order)))
    assert [segments[name] for name in ("micro-batches", "loss")] == ["agrees", "agrees"]


@pytest.mark.parametrize(
    ("name", "change", "wanted"),
    [
        ("log_probs.grad", lambda gradient: gradient * 1.01, ("agrees", "deviates")),
        ("advantages", lambda gains: gains.roll(1, 0), ("deviates", "deviates")),
        ("responses", lambda ids: ids + 1, ("not seen", "agrees")),  # unknown ones
    ],
)
def test_what_one_worker_did_otherwise_is_seen(
    name: str, change: Callable[[Tensor], Tensor], wanted: tuple[str, str], tmp_path: Path
) -> None:
    step = trained(made(), tmp_path / "workers")
    held: Any = step.updates[0][2]
    held[name] = change(held[name])
    segments = found(recorded_loss(step))
    assert (segments["micro-batches"], segments["loss"]) == wanted


def test_rows_of_the_same_tokens_are_told_apart_by_what_the_loss_reads(tmp_path: Path) -> None:
    step = made(1)
    alike = {name: t[:1].expand_as(t).clone() for name, t in step.trained.items()}
    alike["advantages"] = torch.arange(1.0, 5)[:, None] * alike["response_mask"]
    step = trained(replace(step, trained=alike), tmp_path / "workers", [2, 0, 3, 1])
    [update] = recorded_loss(step).updates
    rows = [micro.given.rows for micro in update.micro_batches]
    assert torch.cat([row for row in rows if row is not None]).tolist() == [2, 0, 3, 1]


def test_an_update_that_one_of_the_workers_did_not_write_is_not_seen(tmp_path: Path) -> None:
    trained(made(), tmp_path / "workers")
    (tmp_path / "workers" / "loss-0-1-2.safetensors").unlink()
    assert written(tmp_path / "workers") == []


class V1Trainer:
    """Stands for verl's v1 trainer: a step is balanced, completed and trained on, by keys of rows that lie elsewhere."""

    global_steps, config, tokenizer = 1, None, None

    def __init__(self, stored: dict[str, dict[str, Any]]) -> None:
        self.stored = stored

    def fit(self) -> None:
        tags = [{"is_padding": key == "filler"} for key in self.stored]
        batch = SimpleNamespace(keys=[*self.stored], tags=tags, partition_id="train")
        self._balance_batch(batch, metrics={})
        for row in self.stored.values():
            row["advantages"] = torch.ones_like(row["rm_scores"])
        self._update_actor(batch, metrics={})

    def _balance_batch(self, batch: Any, metrics: dict[str, Any]) -> None:
        batch.keys.reverse()
        batch.tags.reverse()

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> None: ...


def test_the_rows_of_a_transfer_queue_are_those_of_a_padded_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = made(2)
    stored: dict[str, dict[str, Any]] = {}
    for row, uid in enumerate(step.uids):
        mask = step.sampled["attention_mask"][row].bool()
        read, wrote = mask[:PROMPT], mask[PROMPT:]
        stored[f"{uid} {row}"] = {
            "prompts": step.sampled["prompts"][row][read],
            **{n: step.sampled[n][row][wrote] for n in ("responses", "response_mask", "rm_scores")},
            "uid": uid,
            "raw_prompt": step.rows[row]["prompt"],
            "num_turns": 2,
        }
    stored["filler"] = dict(stored["group 0 0"])

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        rows = [stored[key] for key in keys]
        columns = {name: [row[name] for row in rows] for name in select_fields if name in rows[0]}
        nested = functools.partial(torch.nested.as_nested_tensor, layout=torch.jagged)
        return {n: nested(v) if isinstance(v[0], Tensor) else v for n, v in columns.items()}

    monkeypatch.setitem(sys.modules, "transfer_queue", SimpleNamespace(kv_batch_get=get))
    kind: Any = type("Watched", (V1Trainer,), {})
    watch_v1_trainer(kind, Told(str(tmp_path), steps=5, rewards=False))
    trainer = kind(stored)
    trainer.fit()
    [held] = trainer._rlvr_debug.steps
    found, wanted = (
        generation_of(each, SIZE) for each in (in_order(held, [*range(8)][::-1]), step)
    )
    assert found.rows == wanted.rows
    assert found.calls[0].prompts == wanted.calls[0].prompts
    assert found.calls[0].outputs == wanted.calls[0].outputs
    for name in TOKENS:
        assert torch.equal(getattr(found.batch, name), getattr(wanted.batch, name)), name


def config(**changes: Any) -> dict[str, Any]:
    """Return what verl's configuration has of what is read, with changes by dotted name."""
    told: dict[str, Any] = {
        "algorithm": {
            "adv_estimator": "grpo",
            "kl_penalty": "kl",
            "kl_ctrl": {"type": "fixed", "kl_coef": 0.1},
            "rollout_correction": {},
        },
        "data": {"max_prompt_length": 7, "truncation": "error", "train_batch_size": 6},
        "actor_rollout_ref": {
            "rollout": {"n": 4, "temperature": 0.7, "top_p": 1, "top_k": -1, "response_length": 6},
            "actor": {
                "strategy": "fsdp2",
                "ppo_mini_batch_size": 3,
                "ppo_micro_batch_size_per_gpu": 2,
                "ppo_epochs": 2,
                "clip_ratio": 0.2,
                "clip_ratio_high": 0.3,
                "loss_agg_mode": "token-mean",
                "policy_loss": {"loss_mode": "vanilla"},
                "entropy_coeff": 0.0,
                "kl_loss_type": "low_var_kl",
                "kl_loss_coef": 0.2,
                "fsdp_config": {"model_dtype": "fp32"},
            },
        },
    }
    for name, value in changes.items():
        *path, last = name.split("__")
        place = told
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return told


ACTOR = "actor_rollout_ref__actor__"
CORRECTION = "algorithm__rollout_correction__"
KL, IS = "algorithm__use_kl_in_reward", f"{CORRECTION}rollout_is"


BYPASSED = ["old log-probabilities", "importance weights", "loss"]
RATE = {"lr": 1e-5, "clip_grad": 0.3, "override_optimizer_config": {"eps": 1e-6}}
WARM = {
    "lr_warmup_steps": 3,
    "betas": [0.9, 0.99],
    "optimizer_impl": "torchao.optim",
    "optimizer": "_AdamW",
}


@pytest.mark.parametrize(
    ("changes", "asked", "unseen"),
    [
        ({}, {"scale_rewards": "group", "kl_beta": 0.0, "max_prompt_length": 0, "group_size": 4, "max_completion_length": 6}, []),
        ({}, {"precision": "bfloat16", "micro_batches": 6, "steps_per_generation": 12, "num_iterations": 2}, []),
        ({}, {"loss_type": "dapo", "tokens_counted": "rows", "clip": 0.2, "epsilon_high": 0.3, "delta": 3.0}, []),
        ({"algorithm__norm_adv_by_std_in_grpo": False}, {"scale_rewards": "none"}, []),
        ({"data__truncation": "right"}, {"max_prompt_length": 7, "truncation_side": "right"}, []),
        ({ACTOR + "use_kl_loss": True}, {"kl_beta": 0.2, "kl_estimator": "k3_held", "kl_place": "loss"}, []),
        ({ACTOR + "loss_agg_mode": "seq-mean-token-mean", ACTOR + "clip_ratio_low": 0.1}, {"loss_type": "grpo", "clip": 0.1}, []),
        ({ACTOR + "policy_loss": {"loss_mode": "gspo"}}, {"importance_sampling_level": "sequence_token", "delta": None}, []),
        ({KL: True, "algorithm__kl_penalty": "mse"}, {"kl_beta": 0.1, "kl_estimator": "k2", "kl_place": "reward"}, []),
        ({IS: "token", IS + "_threshold": 3.0}, {"importance_correction": "token_truncate", "correction_max": 3.0}, []),
        ({IS: "sequence", IS + "_threshold": "0.5_2"}, {"importance_correction": "sequence_mask", "correction_min": 0.5}, []),
        ({IS: "token", CORRECTION + "bypass_mode": True}, {"importance_correction": "token_truncate"}, BYPASSED),
        ({ACTOR + "fsdp_config__mixed_precision": {"param_dtype": "fp32"}}, {"precision": "float32"}, []),
        ({ACTOR + "optim": RATE}, {"learning_rate": 1e-5, "max_grad_norm": 0.3, "adam_epsilon": 1e-6}, []),
        ({ACTOR + "optim": RATE}, {"schedule": "constant", "optimizer": "AdamW"}, []),
        ({ACTOR + "optim": WARM}, {"schedule": "verl's", "betas": (0.9, 0.99), "optimizer": "torchao._AdamW"}, []),
        # what has no reference is not seen and never a pass
        ({"algorithm__adv_estimator": "rloo"}, {}, ["advantages"]),
        ({KL: True, "algorithm__kl_penalty": "abs"}, {}, ["rewards"]),
        ({KL: True, "algorithm__kl_ctrl__type": "adaptive"}, {}, ["rewards"]),
        ({CORRECTION + "rollout_rs": "token_k1"}, {}, ["loss mask", "loss"]),
        ({ACTOR + "loss_agg_mode": "token-sum"}, {}, ["loss"]),
        ({ACTOR + "loss_agg_mode": "seq-mean-token-sum-norm", ACTOR + "loss_scale_factor": 5}, {}, ["loss"]),
        ({ACTOR + "policy_loss": {"loss_mode": "clip_cov"}}, {}, ["loss"]),
        ({ACTOR + "use_kl_loss": True, ACTOR + "kl_loss_type": "abs"}, {}, ["loss"]),
        ({ACTOR + "use_kl_loss": True, KL: True}, {}, ["loss"]),
        ({ACTOR + "strategy": "megatron"}, {}, ["loss"]),
        ({ACTOR + "use_dynamic_bsz": True}, {}, ["micro-batches"]),
        ({IS: "token", IS + "_batch_normalize": True}, {}, ["importance weights"]),
    ],
)  # fmt: skip
def test_a_configuration_of_verl_is_what_the_steps_are_held_to(
    changes: dict[str, Any], asked: dict[str, Any], unseen: list[str]
) -> None:
    found, reasons = asked_of(config(**changes), (9,), 0)
    assert {name: getattr(found, name) for name in asked} == asked
    assert [*reasons] == unseen


def test_a_command_that_cannot_be_recorded_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*words: str) -> str:
        with pytest.raises(InputError) as error:
            called(main, "verl", "--record", *words)
        return str(error.value)

    new, script = str(tmp_path / "new"), tmp_path / "train.py"
    script.write_text("import sys; sys.exit(sys.argv[1:] != ['--steps', '9'])", encoding="utf-8")
    assert refused(str(tmp_path), "-m", "x") == f"{tmp_path}: exists; give --record a new folder"
    assert refused(new).startswith("no command given, expected -m verl.trainer.main_ppo")
    assert refused(new, str(script), "--steps", "9").endswith("because verl's trainer took no step")
    installed = tmp_path / "verl-0.6.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.6.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert refused(new, "-m", "x").startswith("verl 0.6.1: expected 0.9 or later")


class Engine:
    """What is read of verl's engine; its loss is the mean of the log-probabilities."""

    def train_batch(self, data: Any, loss_function: Any) -> Any:
        logprobs = torch.zeros(2, requires_grad=True)
        output = {"log_probs": logprobs}
        loss = loss_function(model_output=output, data=data)
        loss.backward()
        return logprobs.grad

    def get_data_parallel_size(self) -> int:
        return 1


def test_a_worker_whose_loss_cannot_be_recorded_trains_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched: Any = type("Watched", (Engine,), {})
    told = Told(str(tmp_path / "record"))
    watch_engine(watched, told)
    told.workers.mkdir()
    data = {"old_log_probs": torch.zeros(2)}  # without the prompts
    trained = watched().train_batch(
        data, lambda model_output, data: model_output["log_probs"].mean()
    )
    assert torch.equal(trained, torch.full((2,), 0.5))
    assert "a worker's loss could not be recorded: " in capsys.readouterr().out
    assert [*told.workers.iterdir()] == []
