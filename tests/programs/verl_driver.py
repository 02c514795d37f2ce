"""verl's own driver loop with its own worker in this process: verl_driver.py CASES.json FOLDER.

Ray and the servers of its sampler are left out: an object stands for each, which samples with the worker's own model.
Each case has a name, overrides of the configuration, and a fault (verl_faults.py) or none; its record gets that name.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlvr_debug.recorders.verl.recorder import watch_ray_trainer
from rlvr_debug.recorders.verl.worker import Told, watch_engine

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
os.environ.setdefault("MASTER_PORT", "29651")
TOKENS = 8


class Nothing:
    """Stands for what needs Ray or an engine: each call of it does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 1


class Workers:
    """Stands for verl's worker group: one worker, in this process, whose engine's methods are verl's own."""

    def __init__(self, worker: Any) -> None:
        self.worker, self._dispatch_info = worker, {"actor": [0]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)


@dataclass(frozen=True)
class Reply:
    """All after a prompt, with the sampler's log-probabilities, and which of it the sampler wrote."""

    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    wrote: list[int] = field(default_factory=list)

    def with_token(self, token: int, logprob: float, wrote: int) -> Reply:
        return Reply(
            self.prompt, [*self.ids, token], [*self.logprobs, logprob], [*self.wrote, wrote]
        )


class Sampler:
    """Stands for the agent loop: replies of the worker's model as it is now, in verl's layout."""

    def __init__(self, trainer: Any, worker: Any) -> None:
        from verl.trainer.ppo.reward import load_reward_manager

        self.trainer, self.worker, self.replies = trainer, worker, 0
        self.manager = load_reward_manager(trainer.config, trainer.tokenizer)

    def generate_sequences(self, prompts: Any) -> Any:
        """Return replies, where it is asked for of the weights that training began with."""
        if not self.trainer.config.get("stale"):
            return self.generated(prompts)
        module, first = self.worker.actor.engine.module, MADE[1]
        held = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        module.load_state_dict(first)
        found = self.generated(prompts)
        module.load_state_dict(held)
        return found

    def generated(self, prompts: Any) -> Any:
        from verl import DataProto

        asked = self.trainer.config.actor_rollout_ref.rollout
        rows = prompts.non_tensor_batch
        drawn = rows.get("__do_sample__", [True] * len(prompts))
        temperatures = [asked.temperature if own else 0.0 for own in drawn]
        replies = [
            self.reply(self.rendered(raw), temperature)
            for raw, temperature in zip(rows["raw_prompt"], temperatures, strict=True)
        ]
        tensors = _padded(replies, asked, self.trainer.tokenizer.pad_token_id)
        columns = {"__num_turns__": np.array([4 if 0 in x.wrote else 2 for x in replies])}
        columns["multi_modal_inputs"] = np.array([{} for _ in replies], dtype=object)
        names = ("data_source", "reward_model", "extra_info")
        data = DataProto.from_dict(
            tensors, non_tensors={n: rows[n] for n in names} | columns, meta_info={"timing": {}}
        )
        run = self.manager.loop.run_until_complete
        found = [run(self.manager.run_single(data[n : n + 1])) for n in range(len(data))]
        last = tensors["attention_mask"][:, -asked.response_length :].sum(1) - 1
        scores = torch.zeros(tensors["responses"].shape)
        scores[torch.arange(len(found)), last] = torch.tensor([x["reward_score"] for x in found])
        data.batch["rm_scores"] = scores
        extra = {
            key: np.array([x["reward_extra_info"][key] for x in found])
            for key in found[0]["reward_extra_info"]
        }
        data.non_tensor_batch = columns | extra
        data.meta_info["reward_extra_keys"] = [*extra]
        return data

    def rendered(self, raw: Any) -> list[int]:
        data = self.trainer.config.data
        options = dict(data.get("apply_chat_template_kwargs") or {})
        ids = self.trainer.tokenizer.apply_chat_template(
            [*raw], add_generation_prompt=True, return_dict=False, **options
        )
        return self.cut(ids) if data.truncation == "left" else ids

    def cut(self, ids: list[int]) -> list[int]:
        return ids[-self.trainer.config.data.max_prompt_length :]

    def reply(self, prompt: list[int], temperature: float) -> Reply:
        """Return a reply; with tools one that reads what a tool says after each of its first four tokens."""
        ids, tools = [*prompt], self.trainer.config.get("tools")
        self.replies += 1
        reply = Reply(prompt)
        while len(reply.ids) < TOKENS and (not reply.ids or reply.ids[-1] != 258):
            token, known = self.drawn(ids, self.logits(ids), temperature)
            reply = reply.with_token(token, float(known[token]), 1)
            if tools and len(reply.ids) == 4:
                for said in (60, 61, 62):
                    reply = reply.with_token(said, 0.0, 0)
            ids = prompt + reply.ids
        return reply

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """Return the logits of the next token; where it is asked for, as an engine in bfloat16 has them.

        By turns, every other reply is of such an engine.
        """
        module, asked = self.worker.actor.engine.module, self.trainer.config.get("coarse")
        coarse = self.replies % 2 == 0 if asked == "by turns" else bool(asked)
        with torch.autocast("cpu", torch.bfloat16, enabled=coarse):
            found: torch.Tensor = module(input_ids=torch.tensor([ids]), use_cache=False).logits
        return found[0, -1].float()

    def drawn(self, ids: Any, logits: torch.Tensor, temperature: float) -> tuple[int, torch.Tensor]:
        """Return a token, and the log-probabilities that the sampler tells."""
        known = (logits / (temperature or 1)).log_softmax(-1)
        return int(torch.multinomial(known.exp(), 1) if temperature else known.argmax()), known


def _padded(replies: list[Reply], asked: Any, pad: int) -> dict[str, torch.Tensor]:
    long, wide = asked.prompt_length, asked.response_length

    def right(row: list[Any], fill: Any = 0) -> list[Any]:
        return row + [fill] * (wide - len(row))

    prompts = torch.tensor([[pad] * (long - len(x.prompt)) + x.prompt for x in replies])
    responses = torch.tensor([right(x.ids, pad) for x in replies])
    real = [
        [0] * (long - len(x.prompt)) + [1] * len(x.prompt) + right([1] * len(x.ids))
        for x in replies
    ]
    mask = torch.tensor(real)
    found = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "response_mask": torch.tensor([right(x.wrote) for x in replies]),
    }
    if asked.calculate_log_probs:
        found["rollout_log_probs"] = torch.tensor([right(x.logprobs, 0.0) for x in replies])
    return found


MADE: list[Any] = []


def worker_of(config: Any) -> Any:
    """Return verl's worker with its first weights. It is made once, as that takes long; its loss is the configuration's."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers import engine_workers

    asked = config.actor_rollout_ref
    if not MADE:
        worker = engine_workers.ActorRolloutRefWorker(asked, "actor_rollout_ref")
        worker.init_model()
        held = worker.actor.engine.module.state_dict()
        MADE.extend([worker, {name: tensor.clone() for name, tensor in held.items()}])
    worker, held = MADE
    worker.actor.engine.module.load_state_dict(held)
    worker.actor.engine.optimizer.state.clear()
    actor = omega_conf_to_dataclass(asked.actor)
    worker.actor.set_loss_fn(partial(engine_workers.ppo_loss, config=actor))
    return worker


def run(config: Any) -> None:
    """Train by verl's loop."""
    from verl.trainer.main_ppo_v0 import create_rl_dataset, create_rl_sampler
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, Role
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.dataset.rl_dataset import collate_fn

    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    data = [
        create_rl_dataset(
            config.data.train_files, config.data, model.tokenizer, None, is_train=train
        )
        for train in (True, False)
    ]
    trainer = RayPPOTrainer(
        config,
        model.tokenizer,
        {Role.ActorRolloutRef: object},
        Nothing(),
        train_dataset=data[0],
        val_dataset=data[1],
        collate_fn=collate_fn,
        train_sampler=create_rl_sampler(config.data, data[0]),
    )
    worker = worker_of(config)
    trainer.actor_rollout_wg = trainer.ref_policy_wg = Workers(worker)
    trainer.checkpoint_manager = trainer.llm_server_manager = trainer.reward_loop_manager = (
        Nothing()
    )
    trainer.async_rollout_manager = Sampler(trainer, worker)
    trainer.fit()


def main() -> None:
    """Run all cases, and those of all faults, and write what is to be seen of each fault."""
    import verl.trainer
    import verl_faults
    import verl_on_cpu  # noqa: F401 - puts it in verl's registries
    from hydra import compose, initialize_config_dir
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.workers.engine.base import BaseEngine

    told, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    faults = {f"fault {n}": name for n, name in enumerate(verl_faults.FAULTS)}
    expected = {case: (name, verl_faults.FAULTS[name][0]) for case, name in faults.items()}
    (folder / "expected.json").write_text(json.dumps(expected))
    cases = [*told["cases"], *({"name": case, "fault": name} for case, name in faults.items())]
    inner = RayPPOTrainer._update_actor, RayPPOTrainer.fit, BaseEngine.train_batch
    settings = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(str(settings), version_base=None):
        for case in cases:
            torch.manual_seed(0)
            RayPPOTrainer._update_actor, RayPPOTrainer.fit, BaseEngine.train_batch = inner
            if case.get("watched", True):
                told_of = Told(str(folder / case["name"]), **case.get("told", {}))
                watch_ray_trainer(RayPPOTrainer, told_of)
                watch_engine(BaseEngine, told_of)
            _, plant, more = verl_faults.FAULTS.get(case.get("fault"), ("", lambda _: None, []))
            asked = [*told["overrides"], *case.get("overrides", []), *more]
            with ExitStack() as stack:
                plant(stack)
                try:
                    run(compose("ppo_trainer", asked))
                except Exception:
                    (folder / f"{case['name']}.error").write_text(traceback.format_exc())
            (folder / f"{case['name']}.digest").write_text(digest())


def digest() -> str:
    """Return the weights that training ended with, in short."""
    held = MADE[0].actor.engine.module.state_dict().values()
    whole = torch.cat([getattr(each, "_local_tensor", each).flatten() for each in held])
    return hashlib.sha256(whole.numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    import verl_driver  # whose classes the faults are planted in

    verl_driver.main()
