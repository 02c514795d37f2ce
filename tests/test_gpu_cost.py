"""What is said of GPUs without one: counted weights against transformers and peft, states against DeepSpeed's own
estimate, activations against what torch keeps, and what must hold of any estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.scaling.cost import (
    GPUS,
    Setup,
    activation_bytes,
    adapter_slots,
    cached_tokens,
    decode_seconds,
    kv_bytes,
    sampling_seconds,
    trainer_memory,
)
from lab.scaling.plan import gpu_lines, run_cost
from rlvr_debug.checkout import ROOT
from rlvr_debug.environments.task import Lengths
from rlvr_debug.models.architectures import PUBLISHED, Architecture
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params

PARAMS = load_params(ROOT / "params.yaml")
FULL = load_params(ROOT / "params.yaml", ROOT / "studies" / "qwen2.5-7b.yaml")
SEVEN = Architecture.of(PUBLISHED["Qwen2.5-7B"])
A100, H100 = GPUS.values()
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 1280,
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "tie_word_embeddings": False,
}


def setup(**changes: Any) -> Setup:
    usual = Setup(SEVEN, 3, True, 16, True, True, 1, 1)
    return replace(usual, **changes)


def built(config: Any, device: str = "meta") -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


# --- counted


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen2.5-0.5B", 0.49),
        ("Qwen2.5-7B", 7.62),
        ("Qwen3-0.6B", 0.60),
        ("Llama-3.2-1B", 1.24),
    ],
)
def test_weights_are_those_that_transformers_and_peft_make(name: str, billions: float) -> None:
    from peft import LoraConfig, get_peft_model

    model, architecture = built(PUBLISHED[name]), Architecture.of(PUBLISHED[name])
    assert architecture.parameters == model.num_parameters()
    assert round(architecture.parameters / 1e9, 2) == billions
    assert architecture.block == sum(p.numel() for p in model.model.layers[0].parameters())
    config = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    trained = (p.numel() for p in get_peft_model(model, config).parameters() if p.requires_grad)
    assert architecture.adapter(16) == sum(trained)


@given(st.integers(1, 64))
def test_states_in_full_are_deepspeed_s_own_estimate(gpus: int) -> None:
    stage3 = pytest.importorskip("deepspeed.runtime.zero.stage3")
    _, expected, _ = stage3.estimate_zero3_model_states_mem_needs(
        SEVEN.parameters, 0, num_gpus_per_node=gpus, cpu_offload=False, cpu_offload_params=False
    )
    memory = trainer_memory(setup(rank=0, processes=gpus), 1, 1)
    found = memory.weights + memory.gradients + memory.optimizer
    assert found == pytest.approx(expected, rel=1e-6)


def kept(setup: Setup, rows: int) -> int:
    """Bytes that a pass over `rows` sequences of 64 tokens keeps for the way back, weights apart."""
    model = built(SMALL, "cpu")
    if setup.rank:
        from peft import LoraConfig, get_peft_model

        model = model.to(torch.bfloat16 if setup.bf16 else torch.float32)
        config = LoraConfig(r=setup.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        get_peft_model(model, config)
    if setup.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage  # held, so that no other gets its place
        return tensor

    ids = torch.zeros(rows, 64, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=setup.bf16),
    ):
        output = model.model(input_ids=ids, use_cache=False)[0]
    assert output.requires_grad
    return sum(storage.nbytes() for storage in found.values())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("bf16", [False, True])
def test_activations_are_what_torch_keeps_for_the_way_back(
    bf16: bool, rank: int, recompute: bool
) -> None:
    small = Architecture.of(SMALL)
    told = setup(model=small, processes=1, sharded=False, rank=rank, bf16=bf16, recompute=recompute)
    per_token = (kept(told, 6) - kept(told, 2)) / (4 * 64)
    if recompute:
        # a block's values come into being on the way back only; the last norm keeps two of its own
        block = activation_bytes(replace(told, recompute=False), 1) / small.layers
        inputs = activation_bytes(told, 1) - block
        assert inputs < per_token < inputs + 3 * 4 * small.hidden
    else:
        assert 0.8 < per_token / activation_bytes(told, 1) < 1.1


# --- what must hold of it

SETUPS = st.builds(
    Setup,
    st.sampled_from([Architecture.of(config) for config in PUBLISHED.values()]),
    processes=st.integers(1, 16),
    sharded=st.booleans(),
    rank=st.sampled_from([0, 8, 64]),
    bf16=st.booleans(),
    recompute=st.booleans(),
    sequences=st.integers(1, 16),
    chunk=st.integers(1, 4),
)
LENGTHS = st.builds(
    Lengths, st.integers(1, 4096), st.integers(1, 2048), st.integers(1, 10), st.integers(0, 1024)
)


@given(SETUPS, LENGTHS, st.integers(1, 512), st.integers(1, 512))
def test_sampling_side_by_side_is_no_slower(
    told: Setup, lengths: Lengths, rollouts: int, at_once: int
) -> None:
    def seconds(many: int) -> float:
        return sampling_seconds(told.model, A100, 2, lengths, rollouts, many)

    assert seconds(2 * at_once) <= seconds(at_once) * 1.0000001
    # one token of one sequence takes at least as long as reading the weights of the blocks
    read = 2 * told.model.layers * told.model.block
    assert decode_seconds(told.model, A100, 2, 1, 1) > read / A100.bandwidth
    assert seconds(at_once) > lengths.sampled * read / A100.bandwidth


@given(st.integers(0, 500_000), st.sampled_from([8, 16, 64]))
def test_a_server_s_memory_holds_what_is_said_to_fit(tokens: int, rank: int) -> None:
    slots = adapter_slots(SEVEN, A100, 0.9, 2, rank, tokens)
    adapters = 2 * slots * SEVEN.adapter(rank)
    assert cached_tokens(SEVEN, A100, 0.9, 2, adapters=adapters) >= tokens
    more = adapters + 2 * SEVEN.adapter(rank)
    assert cached_tokens(SEVEN, A100, 0.9, 2, adapters=more) <= tokens
    used = 2 * SEVEN.parameters + adapters + tokens * kv_bytes(SEVEN, 2)
    assert used < 0.9 * A100.memory


# --- what is printed


def test_a_plan_speaks_of_gpus_where_the_model_is_real_and_says_that_it_guesses() -> None:
    assert gpu_lines(PARAMS, 3, ROOT) == []
    text = "\n".join(gpu_lines(FULL, 3, ROOT))
    assert "estimated by formula; docs/scaling.md says what was measured on one" in text
    assert "7.62 B weights, 40.4 M of them trained, on 3 GPUs (ZeRO-3)" in text
    assert "3.09 B weights" in text
    assert all(len(line) < 80 for line in text.splitlines())


def test_hours_are_those_of_every_training_and_of_what_is_left() -> None:
    trained = [run for run in runs(FULL) if run.arm == run.trained_as]
    models = {
        "musique": SEVEN,
        "calculator": SEVEN,
        "gsm8k": Architecture.of(PUBLISHED["Qwen2.5-3B"]),
    }
    hours = sum(
        run_cost(run, FULL, models[run.environment], A100, ROOT).gpu_hours for run in trained
    )
    lines = gpu_lines(FULL, len(trained) // 3, ROOT)
    [whole] = [line for line in lines if line.startswith(f"GPU hours of {len(trained)}")]
    [left] = [line for line in lines if "not done yet" in line]
    assert float(whole.split()[-2].replace(",", "")) == pytest.approx(hours, abs=0.06)
    assert float(left.split()[-2].replace(",", "")) == pytest.approx(hours / 3, abs=0.06)


def test_a_model_of_which_nothing_is_known_is_said_to_be_so() -> None:
    params = replace(FULL, base_model="somebody/else@main", base_models={})
    text = "\n".join(gpu_lines(params, 3, ROOT))
    assert "musique, somebody/else: not fetched, and its sizes are not known" in text
