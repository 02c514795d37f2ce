"""verl's FSDP engine on gloo, and a sampler of transformers: actor_rollout_ref.model.external_lib has verl import it."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from torch.distributed.fsdp import OffloadPolicy
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

_SERVER = "verl_cpu_server"


class Server:
    """Holds the policy's weights, which the trainer sends after each step, and samples."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        ends = self.model.generation_config.eos_token_id
        self.ends = ends if isinstance(ends, list) else [ends]

    def load(self, weights: dict[str, Any], steps: int) -> None:
        self.model.load_state_dict(weights, strict=False)
        self.steps = steps

    @torch.no_grad()
    def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
        ids, logprobs = [*prompt_ids], list[float]()
        while len(logprobs) < int(os.environ["VERL_CPU_TOKENS"]):
            logits = self.model(torch.tensor([ids])).logits[0, -1].float()
            drawn = (logits / (sampling_params["temperature"] or 1)).log_softmax(-1)
            ids.append(int(torch.multinomial(drawn.exp(), 1)))
            logprobs.append(float(drawn[ids[-1]]))
            if ids[-1] in self.ends:
                break
        return TokenOutput(
            token_ids=ids[len(prompt_ids) :],
            log_probs=logprobs,
            stop_reason="completed",
            extra_fields={"global_steps": self.steps},
        )

    def ignored(self, *_: Any, **__: Any) -> None: ...

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = ignored
    release_kv_cache = resume_kv_cache = ignored


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        server = ray.remote(Server).options(name=_SERVER).remote(self.model_config.path)
        self.servers, self._server_handle, self._server_address = [server], server, "here"


class Adapter:
    """Stands in a worker, and sends the trainer's weights to the server."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, global_steps: int = 0, **_: Any) -> None:
        held = {name: tensor.detach().cpu() for name, tensor in weights}
        await ray.get_actor(_SERVER).load.remote(held, global_steps)


base._ROLLOUT_REGISTRY["transformers", "async"] = f"{__name__}.Adapter"
RolloutReplicaRegistry.register("transformers", lambda: Replica)
# without CUDA there is no memory to pin
transformer_impl.CPUOffloadPolicy = lambda **_: OffloadPolicy()
EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device="cpu")(
    transformer_impl.FSDPEngineWithLMHead
)
if "RANK" in os.environ:  # a worker, whose group verl would make of two backends
    torch.distributed.init_process_group("gloo")
