"""What prime-rl exports and what is saved of OpenRLHF's Experience, checked: healthy steps agree, and faults are found where they are.

A small loop makes both with the tiny model, in the formats that the trainers' sources have. Neither trainer is needed.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.recorders import converters
from rlvr_debug.recorders.converters import reader_of
from rlvr_debug.recorders.converters.openrlhf import parts_of, save
from rlvr_debug.replay.store import check_folder, read_record
from tests.in_process import called
from tests.shared import ran
from tests.small_record import line

TINY = ROOT / "models" / "tiny"
SIZE, HEAT, WIDTH = 4, 0.8, 8
SETTINGS = {
    "group_size": SIZE,
    "sampling": {"temperature": HEAT},
    "max_completion_length": 4 * WIDTH,
    "precision": "float32",
    "scale_rewards": "group",
    "advantage_epsilon": 1e-9,
    "kl_beta": 0.01,
}
Row = dict[str, Any]
Fault = Callable[[Row], Row]  # what a sequence, or a batch of OpenRLHF's, has in place of its own


def none(_: Row) -> Row:
    return {}


@cache
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


def logprobs_of(ids: Tensor, heat: float = HEAT) -> Tensor:
    """Return the log-probability of each token given those before it, [T], at the first that of a guess."""
    with torch.no_grad():
        drawn = (model()(ids[None]).logits[0] / heat).log_softmax(-1)
    found = drawn[:-1].gather(1, ids[1:, None])[:, 0]
    return torch.cat([-torch.tensor([float(drawn.shape[1])]).log(), found])


@cache
def rollouts() -> list[Row]:
    """Return two groups of conversations, each with two replies and what a tool said between them."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    end = "<|im_end|>\n<|im_start|>assistant\n"
    torch.manual_seed(0)
    found: list[Row] = []
    for question in [*["How many?"] * SIZE, *["Why?"] * SIZE]:
        text, ids, wrote = f"<|im_start|>user\n{question}{end}", list[int](), list[bool]()
        for turn, read in enumerate((text, "<|im_start|>tool\n4<|im_end|>\n")):
            ids = ids + tokenizer(read, add_special_tokens=False)["input_ids"]
            drawn = model().generate(
                torch.tensor([ids]),
                do_sample=True,
                temperature=HEAT,
                top_k=0,
                min_new_tokens=2 + turn,
                max_new_tokens=WIDTH - len(found) % 3,
            )
            wrote += [False] * (len(ids) - len(wrote)) + [True] * (len(drawn[0]) - len(ids))
            ids = drawn[0].tolist()
        policy = logprobs_of(drawn[0])
        found.append(
            {
                "text": text,
                "ids": drawn[0],
                "wrote": torch.tensor(wrote),
                "sampler": policy * torch.tensor(wrote),
                "policy": policy,
                "reward": float(sum(ids) % 7),
            }
        )
    return found


def put_beside(folder: Path) -> None:
    """Write what the user adds: settings, the model and the tokenizer."""
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    (folder / "model").symlink_to(TINY)
    (folder / "tokenizer").symlink_to(TINY)


def statuses(folder: Path) -> dict[str, str]:
    answer = check_folder(folder, reader_of(folder))
    return {each["segment"]: each["status"] for each in answer["segments"]}


def with_status(found: dict[str, str], status: str) -> set[str]:
    return {segment for segment, each in found.items() if each == status}


# --- prime-rl

FIRST = "token_exports/step_1/rank_0.jsonl"


def exported(row: Row) -> Row:
    """Return columns of a sequence, as _export_columns has them; `entropy` stands for those that the check does not read."""
    return {
        "schema_version": 1,
        "token_ids": row["ids"].tolist(),
        "position_ids": [*range(len(row["ids"]))],
        "loss_mask": row["wrote"].tolist(),
        "advantages": [None, *(row["wrote"] * (row["reward"] - 3)).tolist()[1:]],
        "inference_logprobs": row["sampler"].tolist(),
        "trainer_logprobs": row["policy"].tolist(),
        "entropy": [1.0] * len(row["ids"]),
    }


def export(folder: Path, fault: Fault = none, steps: int = 1) -> None:
    """Write lines as two ranks do. fault: of the first one, where `...` is nothing."""
    put_beside(folder)
    lines = [*map(exported, rollouts())]
    lines[0] = {name: x for name, x in (lines[0] | fault(lines[0])).items() if x is not ...}
    for number in range(1, steps + 1):
        step = folder / "token_exports" / f"step_{number}"
        step.mkdir(parents=True)
        for rank in range(2):
            told = "".join(json.dumps(each) + "\n" for each in lines[rank::2])
            (step / f"rank_{rank}.jsonl").write_text(told)
        (step / "STABLE").touch()


SEEN_OF_EXPORTS = {"sampler", "loss mask", "model inputs", "policy log-probabilities"}


def test_a_healthy_export_agrees_and_what_is_not_in_it_is_not_seen(tmp_path: Path) -> None:
    export(tmp_path, steps=2)
    found = statuses(tmp_path)
    assert with_status(found, "agrees") == SEEN_OF_EXPORTS
    assert {*found.values()} == {"agrees", "not seen", "none"}
    assert with_status(found, "not seen") >= {
        *("rewards", "advantages", "tokens", "loss", "gradient", "effect"),
    }
    done = called(main, "rlvr-debug", "check", "-v", "--record", str(tmp_path))
    assert done.returncode == 0
    assert "prime-rl's loss has no reference" in done.stdout
    assert "rows repeated" not in done.stdout  # rows are not known


def test_of_a_resumed_run_and_without_a_model_what_needs_neither_is_seen(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / "token_exports/step_1").rename(tmp_path / "token_exports/step_7")
    found = statuses(tmp_path)
    assert found["sampler"] == "not seen"  # its weights are not known
    assert with_status(found, "agrees") == SEEN_OF_EXPORTS - {"sampler"}
    (tmp_path / "model").unlink()
    assert with_status(statuses(tmp_path), "agrees") == {"loss mask", "model inputs"}


def certain(row: Row, policy: float) -> Row:
    """Return log-probabilities by which the sampler was certain of a token that it wrote."""
    place = row["loss_mask"].index(True) + 1
    values = {"inference_logprobs": 0.0, "trainer_logprobs": policy}
    return {n: [*row[n][:place], x, *row[n][place + 1 :]] for n, x in values.items()}


def other_heat(row: Row) -> Row:
    found = logprobs_of(torch.tensor(row["token_ids"]), 1.0) * torch.tensor(row["loss_mask"])
    return {"inference_logprobs": found.tolist()}


def another_branch(row: Row) -> Row:
    """Do not count the first reply, whose log-probabilities by the sampler stay where they are."""
    counted = row["loss_mask"]
    end = counted.index(False, counted.index(True))
    return {"loss_mask": [False] * end + counted[end:]}


@pytest.mark.parametrize(
    ("change", "mask", "agree"),
    [
        (another_branch, "agrees", SEEN_OF_EXPORTS),
        (partial(certain, policy=-1e-6), "agrees", {"loss mask", "model inputs"}),
        (
            lambda row: {"inference_logprobs": [0.0] * len(row["token_ids"])},
            "not seen",
            {"model inputs", "policy log-probabilities"},
        ),
    ],
)
def test_what_an_export_leaves_open_is_no_fault_of_the_mask(
    change: Fault, mask: str, agree: set[str], tmp_path: Path
) -> None:
    export(tmp_path, change)
    found = statuses(tmp_path)
    assert found["loss mask"] == mask
    assert with_status(found, "agrees") == agree


def test_a_folder_of_exports_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    export(tmp_path, lambda row: {"token_ids": [10**6, *row["token_ids"][1:]]})
    unknown = "key 'generations.0.batch.prompt_ids' is 1000000 somewhere, expected"
    assert unknown in line(tmp_path)
    with (tmp_path / FIRST).open("a") as file:
        file.write('{"schema_version":1,"step')
    assert line(tmp_path).startswith(f"{FIRST}:5: expected one JSON object, found a line that")
    (tmp_path / FIRST).with_name("STABLE").unlink()
    assert "found no step with STABLE" in line(tmp_path)
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({**SETTINGS, "sampling": {"temperature": "hot"}}))
    assert line(tmp_path) == (
        "settings.json: key 'sampling.temperature' is text 'hot', expected a number"
    )
    settings.unlink()
    assert line(tmp_path).startswith("settings.json: no such file, expected a record's settings")


# --- OpenRLHF


def experiences(fault: Fault = none) -> list[Any]:
    """Return a step as make_experience_batch does: rows in batches of any order, padded, [B, T] and [B, T - 1].

    fault: of the first batch.
    """
    # compute_advantages_and_returns by `group_norm`
    groups = torch.tensor([row["reward"] for row in rollouts()]).view(-1, SIZE)
    mean, spread = groups.mean(-1, keepdim=True), groups.std(-1, keepdim=True)
    gains = ((groups - mean) / (spread + 1e-9)).flatten()
    found: list[Any] = []
    for index in ([5, 0, 3], [7, 6, 1, 2, 4]):
        rows = [rollouts()[n] for n in index]

        def padded(name: str, rows: list[Row] = rows) -> Tensor:
            return pad_sequence([row[name] for row in rows], batch_first=True)

        mask = padded("wrote")[:, 1:]
        policy = padded("policy")[:, 1:] * mask
        last = mask.shape[1] - mask.int().flip(1).argmax(1, keepdim=True)
        real = [torch.ones_like(row["ids"]) for row in rows]
        part = SimpleNamespace(
            sequences=padded("ids"),
            attention_mask=pad_sequence(real, batch_first=True),
            action_mask=mask,
            action_log_probs=policy,
            base_action_log_probs=policy.clone(),
            rollout_log_probs=padded("sampler")[:, 1:],
            # a reward at the last action, summed up from the end
            advantages=gains[index][:, None] * (torch.arange(mask.shape[1]) < last),
            rewards=torch.tensor([row["reward"] for row in rows]),
            index=index,
            prompts=[row["text"] for row in rows],
            labels=["" for _ in rows],
        )
        vars(part).update({} if found else fault(vars(part)))
        found.append(part)
    return found


def saved(folder: Path, fault: Fault = none, **settings: str | None) -> Path:
    """Save a step; settings: those that are told otherwise, None where they are not told."""
    put_beside(folder)
    save(experiences(fault), folder)
    told = {n: value for n, value in {**SETTINGS, **settings}.items() if value is not None}
    (folder / "settings.json").write_text(json.dumps(told))
    return folder


SEEN_OF_EXPERIENCE = {
    *("groups", "prompt", "sampler", "loss mask", "advantages", "effect"),
    *("old log-probabilities", "reference log-probabilities"),
}


def test_a_healthy_experience_agrees_and_what_is_not_in_it_is_not_seen(tmp_path: Path) -> None:
    save(experiences(), saved(tmp_path))
    found = statuses(tmp_path)
    assert with_status(found, "agrees") == SEEN_OF_EXPERIENCE
    assert with_status(found, "deviates") == set()
    assert with_status(found, "not seen") >= {
        *("rewards", "tokens", "loss", "gradient", "optimizer step"),
    }


def test_more_than_ten_files_of_a_step_are_read_in_the_order_in_which_they_were_saved(
    tmp_path: Path,
) -> None:
    parts = experiences() * 6
    save(parts, tmp_path)
    found = [int(path.stem.partition("_")[2]) for path in parts_of(tmp_path / "step_1")]
    assert len(found) > 10
    assert found == [*range(len(parts))]


def test_an_experience_without_order_is_grouped_by_prompt(tmp_path: Path) -> None:
    for file in saved(tmp_path).glob("step_1/*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "index": None}))
    found = statuses(tmp_path)
    assert with_status(found, "agrees") == SEEN_OF_EXPERIENCE


def test_a_kl_in_the_rewards_leaves_advantages_unseen(tmp_path: Path) -> None:
    assert statuses(saved(tmp_path, kl_place="reward"))["advantages"] == "not seen"


@pytest.mark.parametrize("key", ["precision", "scale_rewards"])
def test_nothing_is_judged_by_a_setting_that_nobody_chose(key: str, tmp_path: Path) -> None:
    said = f"settings.json: key '{key}' is missing, expected beside"
    assert line(saved(tmp_path, none, **{key: None})).startswith(said)


TENSORS = "step_1/experience_0.safetensors"


def test_files_of_an_experience_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    torch.save({"sequences": torch.zeros(3, 9)}, folder / TENSORS)
    assert "expected safetensors" in line(folder)
    (folder / TENSORS).unlink()
    assert line(folder) == f"{TENSORS}: no such file, expected safetensors"
    told = (folder / TENSORS).with_suffix(".json")
    told.write_text(json.dumps({"index": [0], "prompts": ["a", "b"]}))
    assert line(folder) == (
        "step_1/experience_0.json: key 'index' is of length 1, expected 2, as prompts"
    )
    told.write_text("{")
    assert line(folder).startswith("step_1/experience_0.json: expected JSON, found: ")


def test_what_training_imports_to_save_an_experience_needs_no_transformers() -> None:
    code = (
        "import sys, rlvr_debug.recorders.converters.openrlhf;"
        "sys.exit(any(name in sys.modules for name in ('transformers', 'trl', 'verl')))"
    )
    assert ran([sys.executable, "-c", code]).returncode == 0


# --- both


def of_the_model(part: Row, mask: Tensor, heat: float = HEAT) -> Tensor:
    """Return what the actor's forward pass returns, which is 0 where the mask is."""
    return torch.stack([logprobs_of(row, heat)[1:] for row in part["sequences"]]) * mask


def mask_late(part: Row) -> Row:
    mask = torch.cat([part["action_mask"][:, :1] & False, part["action_mask"][:, :-1]], 1)
    return {"action_mask": mask, "action_log_probs": of_the_model(part, mask)}


def of_the_batch(part: Row) -> Row:
    gains = part["rewards"] - part["rewards"].mean()
    return {"advantages": gains[:, None].expand(part["action_mask"].shape)}


def heated(name: str, part: Row) -> Row:
    return {name: of_the_model(part, part["action_mask"], 1.0)}


def tool_counts(row: Row) -> Row:
    return {"loss_mask": [any(row["loss_mask"][: n + 1]) for n in row["position_ids"]]}


def changed(name: str, change: Callable[[Any], Any]) -> Fault:
    return lambda row: {name: change(row[name])}


@pytest.mark.parametrize(
    ("write", "segment", "fault"),
    [
        (export, "loss mask", changed("loss_mask", lambda x: [False, *x[:-1]])),
        (export, "loss mask", tool_counts),
        (export, "loss mask", partial(certain, policy=-2.0)),
        (export, "sampler", other_heat),
        (export, "model inputs", changed("position_ids", lambda x: [n % 10 for n in x])),
        (export, "policy log-probabilities", changed("trainer_logprobs", lambda x: [*x[1:], 0.0])),
        (saved, "groups", changed("prompts", lambda x: x[1:] + x[:1])),
        (saved, "sampler", partial(heated, "rollout_log_probs")),
        (saved, "loss mask", mask_late),
        (saved, "advantages", of_the_batch),
        (saved, "advantages", changed("rewards", lambda x: x.roll(1))),
        (saved, "old log-probabilities", changed("action_log_probs", lambda x: x.roll(1, 1))),
        (saved, "reference log-probabilities", partial(heated, "base_action_log_probs")),
    ],
)
def test_a_fault_is_found_first_in_its_segment(
    write: Callable[[Path, Fault], object], segment: str, fault: Fault, tmp_path: Path
) -> None:
    write(tmp_path, fault)
    assert check_folder(tmp_path, reader_of(tmp_path))["first"] == segment


@pytest.mark.parametrize(
    ("write", "name", "change", "said"),
    [
        (export, "token_ids", lambda _: ..., "key 'token_ids' is missing"),
        (export, "loss_mask", lambda x: x[:-1], "key 'loss_mask' is of length "),
        (export, "loss_mask", lambda x: [*x[:3], 1, *x[4:]], "key 'loss_mask.3' is 1, expected"),
        (export, "loss_mask", lambda x: [True, *x[1:]], "key 'loss_mask.0' is true, expected fals"),
        (export, "token_ids", lambda x: ["a", *x[1:]], "key 'token_ids.0' is text 'a', expected"),
        (export, "advantages", lambda x: ["a", *x[1:]], "key 'advantages.0' is text 'a', expected"),
        (export, "trainer_logprobs", lambda x: [*x[:-1], None], ".* is null, expected a number wh"),
        (export, "schema_version", lambda _: 2, "schema_version is 2, expected 1"),
        (saved, "action_log_probs", lambda _: None, "key 'action_log_probs' is missing"),
        (saved, "rewards", lambda x: x[:2], r"key 'rewards' is of shape \[2\], expected \[3\]"),
        (saved, "action_mask", lambda x: x[:, 1:], r"key 'action_mask' is of shape \[3, "),
        (saved, "sequences", Tensor.float, "key 'sequences' is of type torch.float32, expected"),
        (saved, "rewards", Tensor.long, "key 'rewards' is of type torch.int64, expected"),
        (saved, "advantages", lambda x: x * math.nan, "key 'advantages' is NaN somewhere, expect"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file(
    write: Any, name: str, change: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    write(tmp_path, changed(name, change))
    assert re.match(f"({FIRST}:1|{TENSORS}): {said}", line(tmp_path))


# --- found by themselves


def test_a_converter_is_found_without_an_edit_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "FILES = 'mine.txt'\ndef convert(folder, settings):\n    raise SystemExit('mine')\n"
    (tmp_path / "of_ones_own.py").write_text(own)
    (tmp_path / "mine.txt").touch()
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
    assert reader_of(tmp_path) is read_record
    monkeypatch.setattr(converters, "__path__", [*converters.__path__, str(tmp_path)])
    with pytest.raises(SystemExit, match="mine"):
        reader_of(tmp_path)(tmp_path)
    (tmp_path / "record.json").touch()  # a record is a record, whatever lies beside it
    assert reader_of(tmp_path) is read_record


def test_a_converter_is_one_module_of_at_most_150_lines() -> None:
    for path in Path(converters.__file__).parent.glob("[!_]*.py"):
        assert len(path.read_text("utf-8").splitlines()) <= 150, path
