"""One run of TRL's GRPOTrainer, told by params.json: `python -m rlvr_debug.trainers.trl_program params.json`.

It runs in TRL's own environment (envs/trl.txt).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvr_debug.arms import Run
from rlvr_debug.config import ROOT
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError, run_main
from rlvr_debug.faults import fault_names, faulty_stages
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.models.base_model import save_weights
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.trainers.protocol import Told
from rlvr_debug.trainers.trl_callback import Judge, RunRecorder
from rlvr_debug.trainers.trl_config import config_of
from rlvr_debug.trainers.trl_environment import environment_class

__all__ = ["main", "train"]


def main() -> None:
    if len(sys.argv) != 2:
        raise InputError(f"{len(sys.argv) - 1} arguments, expected the path of params.json")
    train(Told.read(Path(sys.argv[1])))


def train(told: Told) -> None:
    """Write metrics.jsonl, rollouts.jsonl and model.safetensors, or adapter/, to told.out."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # of environment_factory
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    run, out = Run.from_json(told.run), Path(told.out)
    chat = Chat(told.base_model)
    environment = build_environment(run.environment, told.environment)
    rows = read_rows(run.environment, Path(told.rows))
    stages = faulty_stages([fault for fault in run.faults if fault in fault_names()])
    judge = Judge(environment, rows, chat)
    recorder = RunRecorder(out, judge, told.records, told.rollouts_kept)
    on_cpu = not torch.cuda.is_available()
    config = GRPOConfig(
        output_dir=str(out / "trl"),
        save_strategy="no",  # TRL's checkpoints are pickles
        report_to=[],
        disable_tqdm=True,
        use_cpu=on_cpu,
        seed=run.seed,
        **{
            **config_of(run.training, environment, stages.max_new_tokens(environment)),
            **run.options,
        },
    )
    tokenizer = chat.tokenizer
    tools = (
        {"environment_factory": environment_class(environment, rows)} if environment.tools else {}
    )
    if tools:
        _make_parse_calls(tokenizer, chat)
    trainer = GRPOTrainer(
        model=told.base_model,
        reward_funcs=[recorder.watched(_reward(run, judge, stages))],
        args=config,
        train_dataset=Dataset.from_list(
            [
                {"prompt": environment.messages(r), "index": i, **_columns(r)}
                for i, r in enumerate(rows)
            ]
        ),
        processing_class=tokenizer,
        callbacks=[recorder],
        peft_config=_adapter(run),
        **tools,
    )
    recorder.attach(trainer)
    trainer.train()
    _save(trainer.model, out)


def _columns(row: Any) -> dict[str, Any]:
    """What a reward function may ask for beside prompts and completions."""
    return {"question": row.question, "answer": row.answer, "row_id": row.id}


def _make_parse_calls(tokenizer: Any, chat: Chat) -> None:
    """Of a chat template that TRL does not know, calls are parsed as this family writes them."""
    from trl import chat_template_utils

    try:
        chat_template_utils.add_response_schema(tokenizer)
    except ValueError:
        if chat.parser != "hermes":
            raise InputError(
                "the tokenizer's chat template is unknown to TRL, expected one that it can parse calls of"
            ) from None
        tokenizer.response_template = chat_template_utils.qwen3_template


def _reward(run: Run, judge: Judge, stages: Stages) -> Callable[..., list[float]]:
    """The user's reward function, where the run has one; else the environment's, through the score stage."""
    for fault in run.faults:
        if fault not in fault_names():
            return user_function(fault)

    def reward(completion_ids: Any, index: Any, **_: Any) -> list[float]:
        rollouts = [judge.rollout(i, ids) for i, ids in zip(index, completion_ids, strict=True)]
        environment = judge.environment
        return [environment.reward(r.row, stages.score(r, environment)) for r in rollouts]

    return reward


def user_function(place: str) -> Callable[..., list[float]]:
    """Of `file.py:name`, from the project's root. Raises InputError where there is none."""
    path, _, name = place.rpartition(":")
    file = ROOT / path
    if not file.is_file():
        raise InputError(f"{file}: no such file, expected one with the reward function '{name}'")
    spec = importlib.util.spec_from_file_location("user_rewards", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., list[float]] | None = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{file}: no function '{name}', expected a reward function")
    return function


def _adapter(run: Run) -> Any:
    if not run.training.lora_r:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=run.training.lora_r,
        lora_alpha=run.training.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def _save(model: Any, out: Path) -> None:
    if hasattr(model, "peft_config"):
        model.save_pretrained(str(out / "adapter"), safe_serialization=True)
        return
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    save_weights(state, out / "model.safetensors")


if __name__ == "__main__":
    run_main(main)
