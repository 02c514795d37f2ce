"""The record that a program writes of its first steps, where it is asked for one (docs/record.md)."""

import copy
import shutil
from dataclasses import fields, replace
from functools import partial
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.models.base_model import one_thread
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.replay.store import read_record
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.trainers import Job
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.protocol import RECORDED
from rlvr_debug.trainers.recording import record


def record_program(job: Job, program: Program, steps: int) -> Record:
    """Run the case for so many steps, in a folder beside job.out, and return the record that the program wrote, if any."""
    one_thread()
    place = job.out.with_suffix("")
    # an update at the first step, whatever the warm-up
    training = replace(job.run.training, steps=steps, save_steps=0, warmup_steps=0)
    few_steps = replace(job, run=replace(job.run, training=training), out=place)
    try:
        found = record(few_steps, program, "check of", recorded=True)
        folder = place / "attempt" / "out" / RECORDED
        if folder.is_dir():
            return _without_files(read_record(folder))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    unseen = {segment.name: "the program wrote no record" for segment in SEGMENTS}
    settings = settings_of(job.run.training, found.environment, found.chat)
    return Record(job.run.trainer, settings, None, None, lambda: None, unseen=unseen)


def _without_files(record: Record) -> Record:
    """Return the record, whose module is no more built from its folder."""
    try:
        module = record.build()
    except NotSeen:  # it has no model
        return record
    return replace(record, build=partial(copy.deepcopy, module))


def settings_of(training: TrainingSettings, environment: Environment, chat: Chat) -> Settings:
    """Return the settings that a run asks for, by which its steps are judged."""
    in_parts = training.multi_objective_aggregation == "normalize_then_sum"
    cap = training.importance_sampling_cap
    dtype = "bfloat16" if training.logprobs_dtype == "bfloat16" else "float32"
    names = {field.name for field in fields(Settings)}
    told: dict[str, Any] = {
        # those of one name mean the same
        **{name: value for name, value in vars(training).items() if name in names},
        "sampling": Sampling(training.temperature, max_new_tokens=environment.max_new_tokens),
        "max_completion_length": environment.max_new_tokens * environment.max_turns,
        "max_context": environment.max_context,
        "micro_batches": training.gradient_accumulation_steps,
        "steps_per_generation": training.gradient_accumulation_steps,
        "reward_weights": tuple(environment.weights.values()) if in_parts else (1.0,),
        "loss_type": training.aggregation,
        "delta": training.delta or None,
        "importance_correction": "token_truncate" if cap else "",
        "correction_max": cap or None,
        "schedule": training.schedule,
        "total_steps": training.steps * training.num_iterations,
        "precision": "autocast" if training.bf16 else dtype,
        "eos_ids": tuple(sorted(chat.ends)),
        "pad_id": chat.tokenizer.pad_token_id or 0,
    }
    return Settings(**told)
