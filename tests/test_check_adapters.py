"""A model with an adapter of peft, and the same model with the adapter added to its weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, VeraConfig, get_peft_model
from torch.func import functional_call
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr_debug.recorders.keeping import kept
from rlvr_debug.recorders.trl.kept import adapters_of, plain_module
from rlvr_debug.replay.adapters import plain_weights
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.settings import Sampling, Settings

LAYERS = ["k_proj", "v_proj", "down_proj"]
ADAPTERS: dict[str, Any] = {
    "lora": LoraConfig(r=4, lora_alpha=16, target_modules=LAYERS, task_type="CAUSAL_LM"),
    "dora": LoraConfig(r=4, target_modules=LAYERS, use_dora=True, task_type="CAUSAL_LM"),
    "ia3": IA3Config(
        target_modules=LAYERS, feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
    ),
    "whole": LoraConfig(
        r=4, target_modules=LAYERS, modules_to_save=["embed_tokens"], task_type="CAUSAL_LM"
    ),
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
    record = Record(
        "a trainer",
        Settings(group_size=2, sampling=Sampling(), max_completion_length=8),
        None,
        None,
        lambda: plain_module(model),
        weights=[dict(model.named_parameters())],
    )
    with pytest.raises(NotSeen, match="the architecture has no"):
        Network(record).policy(0)
