"""verl's own driver loop with its own worker in this process: verl_driver.py CASES.json FOLDER.

Ray and the servers of its sampler are left out: an object stands for each, which samples with the worker's own model.
Each case has a name, overrides of the configuration, and a fault (verl_faults.py) or none; its record gets that name.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
os.environ.setdefault("MASTER_PORT", "29651")
TOKENS = 12


class Nothing:
    """Stands for what needs Ray or an engine: each call of it does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 1


class Workers:
    """Stands for verl's worker group: one worker, in this process, whose engine's methods are verl's own."""

    _dispatch_info = {"actor": [0]}

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)


class Sampler:
    """Stands for the agent loop: replies of the worker's model as it is now, in verl's layout."""

    def __init__(self, trainer: Any, worker: Any) -> None:
        from verl.trainer.ppo.reward import load_reward_manager

        self.trainer, self.worker = trainer, worker
        self.manager = load_reward_manager(trainer.config, trainer.tokenizer)

    def generate_sequences(self, prompts: Any) -> Any:
        from verl import DataProto

        asked = self.trainer.config.actor_rollout_ref.rollout
        rows = prompts.non_tensor_batch
        drawn = rows.get("__do_sample__", [True] * len(prompts))
        options = dict(self.trainer.config.data.get("apply_chat_template_kwargs") or {})
        replies = [
            self.reply(
                self.trainer.tokenizer.apply_chat_template(
                    [*raw], add_generation_prompt=True, return_dict=False, **options
                ),
                asked.temperature if own else 0.0,
            )
            for raw, own in zip(rows["raw_prompt"], drawn, strict=True)
        ]
        tensors = _padded(replies, asked, self.trainer.tokenizer.pad_token_id)
        columns = {"__num_turns__": np.full(len(replies), 2, dtype=np.int32)}
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
        extra = {key: np.array([x["reward_extra_info"][key] for x in found]) for key in found[0]["reward_extra_info"]}
        data.non_tensor_batch = columns | extra
        data.meta_info["reward_extra_keys"] = [*extra]
        return data

    @torch.no_grad()
    def reply(self, prompt: list[int], temperature: float) -> tuple[list[int], list[int], list[float]]:
        module, ids, logprobs = self.worker.actor.engine.module, [*prompt], []
        while len(logprobs) < TOKENS and (not logprobs or ids[-1] != 258):
            logits = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
            known = (logits / (temperature or 1)).log_softmax(-1)
            ids.append(int(torch.multinomial(known.exp(), 1) if temperature else known.argmax()))
            logprobs.append(float(known[ids[-1]]))
        return prompt, ids[len(prompt) :], logprobs


def _padded(replies: list[Any], asked: Any, pad: int) -> dict[str, torch.Tensor]:
    long, wide = asked.prompt_length, asked.response_length
    before = [[pad] * (long - len(p)) + p for p, _, _ in replies]
    after = [o + [pad] * (wide - len(o)) for _, o, _ in replies]
    real = [
        [0] * (long - len(p)) + [1] * (len(p) + len(o)) + [0] * (wide - len(o))
        for p, o, _ in replies
    ]
    mask = torch.tensor(real)
    found = {
        "prompts": torch.tensor(before),
        "responses": torch.tensor(after),
        "input_ids": torch.tensor([b + a for b, a in zip(before, after, strict=True)]),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "response_mask": mask[:, long:].clone(),
    }
    if asked.calculate_log_probs:
        known = [x + [0.0] * (wide - len(x)) for _, _, x in replies]
        found["rollout_log_probs"] = torch.tensor(known)
    return found


def run(config: Any) -> None:
    """Train by verl's loop."""
    from verl.trainer.main_ppo_v0 import create_rl_dataset, create_rl_sampler
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, Role
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.dataset.rl_dataset import collate_fn
    from verl.workers.engine_workers import ActorRolloutRefWorker

    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    data = [
        create_rl_dataset(config.data.train_files, config.data, model.tokenizer, None, is_train=train)
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
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, "actor_rollout_ref")
    worker.init_model()
    trainer.actor_rollout_wg = trainer.ref_policy_wg = Workers(worker)
    trainer.checkpoint_manager = trainer.llm_server_manager = trainer.reward_loop_manager = Nothing()
    trainer.async_rollout_manager = Sampler(trainer, worker)
    trainer.fit()


def main() -> None:
    told, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    import verl.trainer
    import verl_faults
    import verl_on_cpu  # noqa: F401 - puts it in verl's registries
    from hydra import compose, initialize_config_dir

    from rlvr_debug.recorders.verl.recorder import Told, watch_ray_trainer
    from verl.trainer.ppo import ray_trainer

    own = ray_trainer.RayPPOTrainer
    inner = own._update_actor, own.fit
    with initialize_config_dir(str(Path(verl.trainer.__file__).parent / "config"), version_base=None):
        for case in told["cases"]:
            torch.manual_seed(0)
            config = compose("ppo_trainer", told["overrides"] + case.get("overrides", []))
            with ExitStack() as stack:
                fault = case.get("fault")
                own._update_actor, own.fit = inner
                if fault:
                    verl_faults.FAULTS[fault](stack)
                watch_ray_trainer(own, Told(str(folder / case["name"])))
                try:
                    run(config)
                except Exception:
                    (folder / f"{case['name']}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    main()
