"""What prime-rl exports and what is saved of OpenRLHF's Experience, checked: healthy steps agree, and faults are found where they are.

A small loop makes both with the tiny model, in the formats that the trainers' sources have. Neither trainer is needed.
"""

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.recorders import converters
from rlvr_debug.recorders.converters import reader_of
from rlvr_debug.recorders.converters.openrlhf import save
from rlvr_debug.replay.store import check_folder, read_record
from tests.in_process import called
from tests.shared import ran

TINY = ROOT / "models" / "tiny"
SIZE, HEAT, WIDTH = 4, 0.8, 8
TEXTS = tuple(
    f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n" for said in ("How many?", "Why?")
)
SETTINGS = {
    "group_size": SIZE,
    "sampling": {"temperature": HEAT},
    "max_completion_length": 4 * WIDTH,
    "precision": "float32",
    "scale_rewards": "group",
    "advantage_epsilon": 1e-9,
    "kl_beta": 0.01,
}


def logprobs_of(model: Any, ids: Tensor, heat: float = HEAT) -> Tensor:
    """Return the log-probability of each token given those before it, [T], at the first that of a guess."""
    with torch.no_grad():
        drawn = (model(ids[None]).logits[0] / heat).log_softmax(-1)
    found = drawn[:-1].gather(1, ids[1:, None])[:, 0]
    return torch.cat([-torch.tensor([float(drawn.shape[1])]).log(), found])


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def rollouts(model: Any) -> list[dict[str, Any]]:
    """Two groups of conversations, each with two replies and what a tool said between them."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    said = tokenizer("<|im_start|>tool\n4<|im_end|>\n", add_special_tokens=False)["input_ids"]
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    for text in (text for text in TEXTS for _ in range(SIZE)):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        wrote, drawn = [False] * len(ids), [0.0] * len(ids)
        for turn in range(2):
            if turn:
                ids, wrote, drawn = (
                    ids + said,
                    wrote + [False] * len(said),
                    drawn + [0.0] * len(said),
                )
            made = model.generate(
                torch.tensor([ids]),
                do_sample=True,
                temperature=HEAT,
                top_k=0,
                min_new_tokens=2 + turn,
                max_new_tokens=WIDTH - len(found) % 3,
                output_logits=True,
                return_dict_in_generate=True,
            )
            reply = made.sequences[0, len(ids) :]
            logits = torch.stack(made.logits)[:, 0] / HEAT
            drawn = drawn + logits.log_softmax(-1).gather(1, reply[:, None])[:, 0].tolist()
            ids, wrote = ids + reply.tolist(), wrote + [True] * len(reply)
        ids_, policy = torch.tensor(ids), logprobs_of(model, torch.tensor(ids))
        found.append(
            {
                "text": text,
                "ids": ids_,
                "wrote": torch.tensor(wrote),
                "sampler": torch.tensor(drawn),
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


def refused(folder: Path) -> str:
    """Return the line that the folder is refused with, without its path."""
    done = called(main, "rlvr-debug", "check", "--record", str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    [said] = done.stderr.splitlines()
    return str(said).removeprefix("error: ").replace(f"{folder}/", "")


# --- prime-rl

Line = dict[str, Any]
LINE = "token_exports/step_1/rank_0.jsonl"


def exported(row: dict[str, Any]) -> Line:
    """Return the columns of a sequence, as _export_columns has them; a masked token's ratio is no concern of the check."""
    ids, policy, sampler = row["ids"], row["policy"], row["sampler"]
    gap = policy - sampler
    none = [None] * len(ids)
    return {
        "token_ids": ids.tolist(),
        "position_ids": [*range(len(ids))],
        "loss_mask": row["wrote"].tolist(),
        "advantages": (row["wrote"] * (row["reward"] - 3)).tolist(),
        "inference_logprobs": sampler.tolist(),
        "trainer_logprobs": policy.tolist(),
        "entropy": [1.0] * len(ids),
        "mismatch_kl": (gap.exp() - gap - 1).tolist(),
        "log_importance_ratio": gap.tolist(),
        "importance_ratio": gap.exp().tolist(),
        "prob_delta": (policy.exp() - sampler.exp()).tolist(),
        **{f"is_masked{side}": [False] * len(ids) for side in ("", "_high", "_low")},
        **{f"{kind}_weights": none for kind in ("rl", "ce", "ref_kl")},
    }


def write_export(folder: Path, lines: list[Line], steps: int = 1) -> None:
    """Write the lines as two ranks do, in micro-batches of two sequences."""
    put_beside(folder)
    for step in range(1, steps + 1):
        for rank in range(2):
            path = folder / "token_exports" / f"step_{step}" / f"rank_{rank}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            told = [
                {
                    "schema_version": 1,
                    "step": step,
                    "rank": rank,
                    "micro_step": number // 2,
                    "micro_sequence_idx": number % 2,
                    "export_sequence_idx": number,
                    "env_name": "counting",
                    **columns,
                }
                for number, columns in enumerate(lines[rank::2])
            ]
            path.write_text(
                "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in told)
            )
        (path.parent / "STABLE").touch()


SEEN_OF_EXPORTS = ("sampler", "loss mask", "model inputs", "policy log-probabilities")


def test_a_healthy_export_agrees_and_what_is_not_in_it_is_not_seen(
    rollouts: Any, tmp_path: Path
) -> None:
    write_export(tmp_path, [exported(row) for row in rollouts], steps=2)
    found = statuses(tmp_path)
    assert {name for name, status in found.items() if status == "agrees"} == {*SEEN_OF_EXPORTS}
    assert {status for name, status in found.items() if name not in SEEN_OF_EXPORTS} == {
        "not seen",
        "none",
    }
    for name in ("rewards", "advantages", "tokens", "loss", "gradient", "effect"):
        assert found[name] == "not seen", name
    done = called(main, "rlvr-debug", "check", "-v", "--record", str(tmp_path))
    assert done.returncode == 0
    assert "prime-rl's loss has no reference" in done.stdout
    assert "rows repeated" not in done.stdout  # rows are not known


def _late(line: Line, _: Any) -> None:
    line["loss_mask"] = [False, *line["loss_mask"][:-1]]


def _tool_counts(line: Line, _: Any) -> None:
    first = line["loss_mask"].index(True)
    line["loss_mask"][first:] = [True] * (len(line["loss_mask"]) - first)


def _other_heat(line: Line, model: Any) -> None:
    other = logprobs_of(model, torch.tensor(line["token_ids"]), 1.0)
    line["inference_logprobs"] = (other * torch.tensor(line["loss_mask"])).tolist()


def _positions_begin_again(line: Line, _: Any) -> None:
    half = len(line["position_ids"]) // 2
    line["position_ids"][half:] = [*range(len(line["position_ids"]) - half)]


def _shifted(line: Line, _: Any) -> None:
    line["trainer_logprobs"] = [*line["trainer_logprobs"][1:], 0.0]


@pytest.mark.parametrize(
    ("fault", "segment"),
    [
        (_late, "loss mask"),
        (_tool_counts, "loss mask"),
        (_other_heat, "sampler"),
        (_positions_begin_again, "model inputs"),
        (_shifted, "policy log-probabilities"),
    ],
)
def test_a_fault_of_prime_rl_is_found_first_in_its_segment(
    fault: Callable[[Line, Any], None], segment: str, rollouts: Any, model: Any, tmp_path: Path
) -> None:
    lines = [exported(row) for row in rollouts]
    for line in lines:
        fault(line, model)
    write_export(tmp_path, lines)
    assert check_folder(tmp_path, reader_of(tmp_path))["first"] == segment


def test_a_reply_that_another_branch_is_trained_on_was_read(rollouts: Any, tmp_path: Path) -> None:
    lines = [exported(row) for row in rollouts]
    for line in lines[::2]:  # its sampler's log-probabilities stay where they are
        counted = line["loss_mask"]
        end = counted.index(False, counted.index(True))
        counted[:end] = [False] * end
    write_export(tmp_path, lines)
    found = statuses(tmp_path)
    assert {found[name] for name in SEEN_OF_EXPORTS} == {"agrees"}


@pytest.mark.parametrize(("policy", "status"), [(-1e-6, "agrees"), (-2.0, "deviates")])
def test_a_token_with_log_probability_0_was_written_where_training_is_as_sure(
    policy: float, status: str, rollouts: Any, tmp_path: Path
) -> None:
    lines = [exported(row) for row in rollouts]
    place = lines[0]["loss_mask"].index(True) + 1
    lines[0]["inference_logprobs"][place], lines[0]["trainer_logprobs"][place] = 0.0, policy
    write_export(tmp_path, lines)
    assert statuses(tmp_path)["loss mask"] == status


def test_without_the_samplers_log_probabilities_the_mask_is_not_seen(
    rollouts: Any, tmp_path: Path
) -> None:
    lines = [exported(row) for row in rollouts]
    lines[0]["inference_logprobs"] = [0.0] * len(lines[0]["token_ids"])
    write_export(tmp_path, lines)
    found = statuses(tmp_path)
    assert (found["loss mask"], found["sampler"]) == ("not seen", "not seen")
    assert found["model inputs"] == "agrees"


def test_of_a_run_that_was_resumed_the_samplers_weights_are_not_known(
    rollouts: Any, tmp_path: Path
) -> None:
    write_export(tmp_path, [exported(row) for row in rollouts])
    (tmp_path / "token_exports/step_1").rename(tmp_path / "token_exports/step_7")
    found = statuses(tmp_path)
    assert found["sampler"] == "not seen"
    assert found["policy log-probabilities"] == "agrees"


def test_without_a_model_what_needs_none_is_seen(rollouts: Any, tmp_path: Path) -> None:
    write_export(tmp_path, [exported(row) for row in rollouts])
    (tmp_path / "model").unlink()
    agrees = {name for name, status in statuses(tmp_path).items() if status == "agrees"}
    assert agrees == {"loss mask", "model inputs"}


def _cut(line: Line) -> None:
    line["loss_mask"].pop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.pop("token_ids"), "key 'token_ids' is missing"),
        (_cut, "key 'loss_mask' is of length "),
        (lambda line: line["loss_mask"].__setitem__(3, 1), "key 'loss_mask.3' is 1, expected"),
        (
            lambda line: line["token_ids"].__setitem__(3, "a"),
            "key 'token_ids.3' is text 'a', expec",
        ),
        (
            lambda line: line["advantages"].__setitem__(3, "a"),
            "key 'advantages.3' is text 'a', exp",
        ),
        (
            lambda line: line["trainer_logprobs"].__setitem__(-1, None),
            "is null, expected a number where the loss counts",
        ),
        (lambda line: line.update(schema_version=2), "schema_version is 2, expected 1"),
        (
            lambda line: line["loss_mask"].__setitem__(0, True),
            "key 'loss_mask.0' is true, expected false: nothing stands before the first token",
        ),
    ],
)
def test_a_line_that_does_not_fit_is_named_with_its_file(
    change: Callable[[Line], Any], said: str, rollouts: Any, tmp_path: Path
) -> None:
    lines = [exported(row) for row in rollouts]
    change(lines[2])
    write_export(tmp_path, lines)
    assert said in refused(tmp_path).removeprefix(f"{LINE}:2: ")
    assert refused(tmp_path).startswith(f"{LINE}:2: ")


def test_a_folder_of_exports_that_does_not_fit_is_one_line(rollouts: Any, tmp_path: Path) -> None:
    write_export(tmp_path, [exported(row) for row in rollouts])
    settings, stable = tmp_path / "settings.json", tmp_path / "token_exports/step_1/STABLE"
    with (tmp_path / LINE).open("a") as file:
        file.write('{"schema_version":1,"step')
    assert refused(tmp_path).startswith(f"{LINE}:5: expected one JSON object, found a line that")
    stable.unlink()
    assert "found no step with STABLE" in refused(tmp_path)
    settings.write_text(json.dumps({**SETTINGS, "sampling": {"temperature": "hot"}}))
    assert refused(tmp_path) == (
        "settings.json: key 'sampling.temperature' is text 'hot', expected a number"
    )
    settings.unlink()
    assert refused(tmp_path).startswith("settings.json: no such file, expected a record's settings")


@pytest.mark.parametrize("key", ["precision", "scale_rewards"])
def test_nothing_is_judged_by_a_setting_that_nobody_chose(
    key: str, rollouts: Any, tmp_path: Path
) -> None:
    save(experiences(rollouts), tmp_path)
    put_beside(tmp_path)
    told = {name: value for name, value in SETTINGS.items() if name != key}
    (tmp_path / "settings.json").write_text(json.dumps(told))
    assert refused(tmp_path).startswith(f"settings.json: key '{key}' is missing, expected beside")


def test_a_token_that_the_model_does_not_know_is_one_line(rollouts: Any, tmp_path: Path) -> None:
    lines = [exported(row) for row in rollouts]
    lines[0]["token_ids"][0] = 10**6
    write_export(tmp_path, lines)
    assert "key 'generations.0.batch.prompt_ids' is 1000000 somewhere, expected" in refused(
        tmp_path
    )


# --- OpenRLHF


def _experience() -> Any:
    """Return OpenRLHF's own class, where that is installed; else what has attributes of its names."""
    if importlib.util.find_spec("openrlhf") is None:
        return SimpleNamespace
    return importlib.import_module("openrlhf.trainer.ppo_utils.experience").Experience


def advantages_of(rewards: Tensor) -> Tensor:
    """Return what compute_advantages_and_returns makes of rewards by `group_norm`."""
    groups = rewards.view(-1, SIZE)
    mean, spread = groups.mean(-1, keepdim=True), groups.std(-1, keepdim=True)
    return ((groups - mean) / (spread + 1e-9)).flatten()


Sampled = dict[str, Any]


def experiences(rollouts: list[Sampled], fault: Callable[[Any], None] | None = None) -> list[Any]:
    """Return a step as make_experience_batch does: rows in batches of any order, padded, [B, T] and [B, T - 1]."""
    gains = advantages_of(torch.tensor([row["reward"] for row in rollouts]))
    found = []
    for index in ([5, 0, 3], [7, 6, 1, 2, 4]):
        rows = [rollouts[n] for n in index]
        mask = _padded([row["wrote"] for row in rows])[:, 1:]
        policy = _padded([row["policy"] for row in rows])[:, 1:] * mask
        last = mask.shape[1] - mask.int().flip(1).argmax(1, keepdim=True)
        part = _experience()(
            sequences=_padded([row["ids"] for row in rows]),
            attention_mask=_padded([torch.ones_like(row["ids"]) for row in rows]),
            action_mask=mask,
            action_log_probs=policy,
            base_action_log_probs=policy.clone(),
            rollout_log_probs=_padded([row["sampler"] for row in rows])[:, 1:],
            # a reward at the last action, summed up from the end
            advantages=gains[index][:, None] * (torch.arange(mask.shape[1]) < last),
            rewards=torch.tensor([row["reward"] for row in rows]),
            index=index,
            prompts=[row["text"] for row in rows],
            labels=["" for _ in rows],
        )
        if fault:
            fault(part)
        found.append(part)
    return found


def _padded(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)


def saved(parts: list[Any], folder: Path) -> Path:
    put_beside(folder)
    save(parts, folder)
    return folder


SEEN_OF_EXPERIENCE = (
    "groups",
    "prompt",
    "sampler",
    "loss mask",
    "advantages",
    "old log-probabilities",
    "reference log-probabilities",
    "effect",
)


def test_a_healthy_experience_agrees_and_what_is_not_in_it_is_not_seen(
    rollouts: Any, tmp_path: Path
) -> None:
    folder = saved(experiences(rollouts), tmp_path)
    save(experiences(rollouts), tmp_path)
    found = statuses(folder)
    assert {name for name, status in found.items() if status == "agrees"} == {*SEEN_OF_EXPERIENCE}
    assert "deviates" not in found.values()
    for name in ("rewards", "tokens", "loss", "gradient", "optimizer step"):
        assert found[name] == "not seen", name


def test_an_experience_without_order_is_grouped_by_prompt(rollouts: Any, tmp_path: Path) -> None:
    parts = experiences(rollouts)
    for part in parts:
        part.index = None
    found = statuses(saved(parts, tmp_path))
    assert {found[name] for name in SEEN_OF_EXPERIENCE} == {"agrees"}


def _mask_late(part: Any) -> None:
    part.action_mask = torch.cat([part.action_mask[:, :1] & False, part.action_mask[:, :-1]], 1)
    _put_logprobs(part, "action_log_probs", HEAT)


def _put_logprobs(part: Any, name: str, heat: float) -> None:
    """Put there what the actor's forward pass returns, which is 0 where the mask is."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    own = torch.stack([logprobs_of(model, row, heat)[1:] for row in part.sequences])
    setattr(part, name, own * part.action_mask)


def _old_shifted(part: Any) -> None:
    part.action_log_probs = part.action_log_probs.roll(1, 1)


def _of_the_batch(part: Any) -> None:
    gains = part.rewards - part.rewards.mean()
    part.advantages = gains[:, None].expand(part.action_mask.shape)


def _rewards_of_others(part: Any) -> None:
    part.rewards = part.rewards.roll(1)


def _prompts_of_others(part: Any) -> None:
    part.prompts = part.prompts[1:] + part.prompts[:1]


@pytest.mark.parametrize(
    ("fault", "segment"),
    [
        (_prompts_of_others, "groups"),
        (partial(_put_logprobs, name="rollout_log_probs", heat=1.0), "sampler"),
        (_mask_late, "loss mask"),
        (_of_the_batch, "advantages"),
        (_rewards_of_others, "advantages"),
        (_old_shifted, "old log-probabilities"),
        (
            partial(_put_logprobs, name="base_action_log_probs", heat=1.0),
            "reference log-probabilities",
        ),
    ],
)
def test_a_fault_of_openrlhf_is_found_first_in_its_segment(
    fault: Callable[[Any], None], segment: str, rollouts: Any, tmp_path: Path
) -> None:
    folder = saved(experiences(rollouts, fault), tmp_path)
    assert check_folder(folder, reader_of(folder))["first"] == segment


def test_a_kl_in_the_rewards_leaves_advantages_unseen(rollouts: Any, tmp_path: Path) -> None:
    folder = saved(experiences(rollouts), tmp_path)
    told = json.dumps({**SETTINGS, "kl_place": "reward"})
    (folder / "settings.json").write_text(told)
    assert statuses(folder)["advantages"] == "not seen"


TENSORS = "step_1/experience_0.safetensors"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("action_log_probs", None, "key 'action_log_probs' is missing"),
        ("rewards", lambda x: x[:2], "key 'rewards' is of shape [2], expected [3]"),
        ("action_mask", lambda x: x[:, 1:], "key 'action_mask' is of shape [3, "),
        ("sequences", lambda x: x.float(), "key 'sequences' is of type torch.float32, expected"),
        ("rewards", lambda x: x.long(), "key 'rewards' is of type torch.int64, expected"),
        ("advantages", lambda x: x * math.nan, "key 'advantages' is NaN somewhere, expected numb"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_its_file(
    name: str, change: Callable[[Tensor], Tensor] | None, said: str, rollouts: Any, tmp_path: Path
) -> None:
    folder = saved(experiences(rollouts), tmp_path)
    tensors = {n: tensor.clone() for n, tensor in load_file(folder / TENSORS).items()}
    before = tensors.pop(name)
    if change:
        tensors[name] = change(before).contiguous()
    save_file(tensors, folder / TENSORS)
    assert refused(folder).startswith(f"{TENSORS}: {said}")


def test_files_of_an_experience_that_do_not_fit_are_one_line(rollouts: Any, tmp_path: Path) -> None:
    folder = saved(experiences(rollouts), tmp_path)
    torch.save({"sequences": torch.zeros(3, 9)}, folder / TENSORS)
    assert "expected safetensors" in refused(folder)
    (folder / TENSORS).unlink()
    assert refused(folder) == f"{TENSORS}: no such file, expected safetensors"
    told = (folder / TENSORS).with_suffix(".json")
    told.write_text(json.dumps({"index": [0], "prompts": ["a", "b"]}))
    assert refused(folder) == (
        "step_1/experience_0.json: key 'index' is of length 1, expected 2, as prompts"
    )
    told.write_text("{")
    assert refused(folder).startswith("step_1/experience_0.json: expected JSON, found: ")


def test_what_training_imports_to_save_an_experience_needs_no_transformers() -> None:
    code = (
        "import sys, rlvr_debug.recorders.converters.openrlhf;"
        "sys.exit(any(name in sys.modules for name in ('transformers', 'trl', 'verl')))"
    )
    assert ran([sys.executable, "-c", code]).returncode == 0


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
