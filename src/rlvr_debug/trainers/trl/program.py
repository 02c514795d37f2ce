"""One run of TRL's GRPOTrainer, in TRL's own environment: `python -m rlvr_debug.trainers.trl.program params.json`."""

import inspect
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr_debug.causes import stages_with, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment, ToolCall, answer
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.policy import lora_config
from rlvr_debug.grpo.settings import DiagnosticSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.processes import run_main
from rlvr_debug.replay.record import Record
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.trainers import Run
from rlvr_debug.trainers.protocol import RECORDED, Asked, save_trained
from rlvr_debug.trainers.trl import options_of
from rlvr_debug.trainers.trl.callback import Judge, RunRecorder


def main() -> None:
    if len(sys.argv) != 2:
        raise InputError(f"{len(sys.argv) - 1} arguments, expected one, the path of params.json")
    train(Asked.read(Path(sys.argv[1])))


def train(asked: Asked) -> None:
    """Write metrics.jsonl, rollouts.jsonl, model.safetensors or adapter/ and, where asked for, a record to asked.out."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # of environment_factory
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    run, out = asked.run, Path(asked.out)
    chat = Chat(asked.base_model)
    environment = build_environment(run.environment, asked.environment)
    rows = read_rows(run.environment, Path(asked.rows))
    stages = stages_with([fault for fault in run.faults if fault in variant_names()])
    judge = Judge(environment, rows, chat)
    recorded = DiagnosticSettings(asked.rollouts_every, asked.rollouts_kept)
    recorder = RunRecorder(out, judge, recorded)
    options = options_of(run, environment, stages.max_new_tokens(environment))
    config = GRPOConfig(
        output_dir=str(out / "trl"),
        save_strategy="no",  # TRL's checkpoints are pickles
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=run.seed,
        **options,
    )
    tools = {}
    if environment.tools:
        tools["environment_factory"] = environment_class(environment, rows)
        _make_parse_calls(chat)
    trainer = GRPOTrainer(
        model=asked.base_model,
        reward_funcs=[recorder.watched(_reward(run, judge, stages))],
        args=config,
        train_dataset=Dataset.from_list(
            [
                # what a reward function may ask for beside prompts and completions
                {
                    "prompt": environment.messages(row),
                    "index": index,
                    "question": row.question,
                    "answer": row.answer,
                    "row_id": row.id,
                }
                for index, row in enumerate(rows)
            ]
        ),
        processing_class=chat.tokenizer,
        callbacks=[recorder],
        peft_config=lora_config(run.training) if run.training.lora_r else None,
        **tools,
    )
    recorder.attach(trainer)
    if asked.record:
        from rlvr_debug.recorders.trl import live
        from rlvr_debug.replay.store import write_record

        record, _ = live.recorded(trainer, trainer.train, steps=config.max_steps, rewards=True)
        write_record(_evaluated(record, judge), out / RECORDED)
    else:
        trainer.train()
    save_trained(trainer.model, out)


def _evaluated(record: Record, judge: Judge) -> Record:
    """Return the record with what the environment's own reward is of each completion."""
    for generation in record.generations:
        generation.reward_calls = [
            replace(
                call,
                evaluated=[
                    judge.rollout(index, ids).reward
                    for index, ids in zip(
                        call.columns["index"], call.columns["completion_ids"], strict=True
                    )
                ],
            )
            for call in generation.reward_calls
        ]
    return record


def _make_parse_calls(chat: Chat) -> None:
    """Of a chat template that TRL does not know, calls are parsed as this family writes them."""
    from trl import chat_template_utils

    try:
        chat_template_utils.add_response_schema(chat.tokenizer)
    except ValueError:
        if chat.parser != "hermes":
            raise InputError(
                "TRL does not know the tokenizer's chat template, expected one with tool calls that it can parse"
            ) from None
        chat.tokenizer.response_template = chat_template_utils.qwen3_template


def _reward(run: Run, judge: Judge, stages: Stages) -> Callable[..., list[float]]:
    """The user's reward function, where the run has one; else the environment's, through the score stage."""
    for fault in run.faults:
        if fault not in variant_names():
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
    found = runpy.run_path(str(file), run_name="user_rewards")
    function: Callable[..., list[float]] | None = found.get(name)
    if not callable(function):
        raise InputError(f"{file}: no function '{name}', expected a reward function")
    return function


_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list[int]}


def environment_class(environment: Environment, rows: Sequence[Row]) -> type:
    """What GRPOTrainer takes as environment_factory. Its dataset has a column `index`, the place in `rows`."""

    def reset(self: Any, index: int, **_: Any) -> None:
        self.row = rows[index]

    methods = {each["function"]["name"]: _method(each, environment) for each in environment.tools}
    return type(type(environment).__name__, (), {"reset": reset, **methods})


def _method(tool: dict[str, Any], environment: Environment) -> Callable[..., str]:
    """A method whose signature and docstring give the tool's own schema (transformers' get_json_schema)."""
    function = tool["function"]
    arguments = function["parameters"]["properties"]

    def method(self: Any, **given: Any) -> str:
        return answer(ToolCall(function["name"], given), self.row, environment).text

    kinds = {name: _TYPES[schema["type"]] for name, schema in arguments.items()}
    method.__name__ = function["name"]
    method.__doc__ = "\n".join(
        [function["description"], "", "Args:"]
        + [f"    {name}: {schema['description']}" for name, schema in arguments.items()]
    )
    # without a return type, which would go into the schema
    method.__annotations__ = dict(kinds)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        + [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    return method


if __name__ == "__main__":
    run_main(main)
