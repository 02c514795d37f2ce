"""The check on other architectures than our own, and on weights with adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import IA3Config, LoraConfig, VeraConfig, get_peft_model
from torch.func import functional_call
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    set_seed,
)

from rlvr_debug.recorders.keeping import kept
from rlvr_debug.recorders.trl.live import recorded
from rlvr_debug.recorders.trl.objects import adapters_of, plain_module
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.network import Network, plain_weights
from rlvr_debug.replay.record import Forward
from rlvr_debug.replay.store import answered
from tests.small_record import bare_record

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
}
_PAIRED = {**_SIZES, "num_key_value_heads": 2}
_HEADS = {**_PAIRED, "head_dim": 8}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
# of each kind one: what it has that others have not
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,  # learned positions
    "gpt_neox": _SIZES,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},  # distances in place of positions
    "mistral": {**_PAIRED, "sliding_window": 16},
    "gemma2": {**_HEADS, "sliding_window": 16},  # capped logits
    "qwen3": _HEADS,  # norms of heads
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},  # no attention
    "lfm2": {**_PAIRED, "full_attn_idxs": [1]},  # convolutions
    "mixtral": {**_PAIRED, "num_local_experts": 4},  # saved in other pieces
    "gpt_oss": {**_HEADS, "num_local_experts": 4, "sliding_window": 16},  # sinks
}
ROUTED = {"mixtral", "gpt_oss"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_run_of_another_architecture_is_checked_and_not_flagged(
    kind: str, tmp_path: Path
) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed: no trainer to check")
    from benchmarks.check.case import TINY, plain, variety_reward

    small = {"max_steps": 2, "gradient_accumulation_steps": 1, "max_completion_length": 12}
    case = plain(str(TINY), "float32", 0, str(tmp_path)).told(
        **small, learning_rate=1e-3, use_cpu=True
    )
    tokenizer = case.tokenizer
    end = tokenizer.eos_token_id
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": end, "bos_token_id": end}
    set_seed(0)
    torch.set_num_threads(1)
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **ids, **KINDS[kind])
    asked = [{"role": "user", "content": "What is 3 plus 4?"}]
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_config(config),
        reward_funcs=[variety_reward],
        args=trl.GRPOConfig(**case.config),
        train_dataset=Dataset.from_list([{"prompt": asked, "number": n} for n in range(16)]),
        processing_class=tokenizer,
    )
    answer = answered(*recorded(trainer, trainer.train, steps=2, rewards=True))
    assert answer["first"] is None, answer["answer"]
    unseen = {each["segment"] for each in answer["segments"] if each["status"] == "not seen"}
    # a router's own loss has no reference
    assert unseen == ({"gradient"} if kind in ROUTED else set())


def test_an_architecture_that_cannot_be_computed_exactly_is_not_seen_and_no_traceback() -> None:
    class Coarse(torch.nn.Linear):
        def forward(self, input_ids: Any, **_: Any) -> Any:  # type: ignore[override]
            assert self.weight.dtype == torch.float64
            raise RuntimeError("expected Float32, got Double\nin a kernel")

    record = bare_record(build=lambda: Coarse(2, 2), weights=[{"weight": torch.ones(2, 2)}])
    ids = Forward(torch.zeros(1, 2, dtype=torch.long))
    said = "Coarse cannot be computed in float64: RuntimeError: expected"
    with pytest.raises(NotSeen, match=said):
        Network(record).logits(record.weights[0], ids)


# --- adapters

LAYERS = ["k_proj", "v_proj", "down_proj"]
GIVEN: dict[str, Any] = {"target_modules": LAYERS, "task_type": "CAUSAL_LM"}
ADAPTERS: dict[str, Any] = {
    "lora": LoraConfig(r=4, lora_alpha=16, **GIVEN),
    "dora": LoraConfig(r=4, use_dora=True, **GIVEN),
    "ia3": IA3Config(feedforward_modules=["down_proj"], **GIVEN),
    "whole": LoraConfig(r=4, modules_to_save=["embed_tokens"], **GIVEN),
}


def adapted(config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = get_peft_model(Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)), config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_added_to_the_weights_computes_what_the_model_with_it_does(name: str) -> None:
    model, ids = adapted(ADAPTERS[name]), torch.arange(20).view(2, 10)
    weights = {name: kept(parameter) for name, parameter in model.named_parameters()}
    plain = plain_module(model)
    on, off = plain_weights(weights, adapters_of(model)), plain_weights(weights, {})
    with torch.no_grad():
        wanted = model(input_ids=ids).logits
        with model.disable_adapter():
            base = model(input_ids=ids).logits
        for held, logits in ((on, wanted), (off, base)):
            got = functional_call(plain, held, (), {"input_ids": ids}).logits
            torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(wanted, base, atol=1e-3)


def test_an_adapter_without_a_reference_is_not_seen() -> None:
    config = LoraConfig(r=4, target_modules=["embed_tokens"], task_type="CAUSAL_LM")
    weights = dict(adapted(config).named_parameters())
    with pytest.raises(NotSeen, match="lora_embedding"):
        plain_weights(weights, {})


def test_weights_that_the_architecture_does_not_have_are_not_seen() -> None:
    """VeRA has names of its own, which a functional call would stumble over."""
    model = adapted(VeraConfig(r=4, target_modules=["k_proj"], task_type="CAUSAL_LM"))
    weights = dict(model.named_parameters())
    record = bare_record(build=lambda: plain_module(model), weights=[weights])
    with pytest.raises(NotSeen, match="the reference code lacks"):
        Network(record).policy(0)
