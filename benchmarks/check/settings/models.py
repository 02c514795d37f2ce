"""Settings of the model: adapters, precision, other architectures, a tokenizer's padding."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from benchmarks.check.case import Case
from benchmarks.check.settings.setting import Setting, setting, told

_LAYERS = ["q_proj", "v_proj", "up_proj", "down_proj"]


def _lora(**given: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=16, target_modules=_LAYERS, task_type="CAUSAL_LM", **given)


def _adapted(name: str, *, disabled: bool = False, **given: Any) -> Setting:
    """Return the setting of an adapter. disabled: its dropout is, by the trainer's argument."""
    config = {"disable_dropout": True} if disabled else {}
    return Setting(name, lambda case: case.given(peft_config=_lora(**given)).told(**config))


def ia3(case: Case) -> Case:
    from peft import IA3Config

    config = IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    )
    return case.given(peft_config=config)


def lora_all_layers(case: Case) -> Case:
    from peft import LoraConfig

    config = LoraConfig(
        r=4, target_modules="all-linear", modules_to_save=["embed_tokens"], task_type="CAUSAL_LM"
    )
    return case.given(peft_config=config)


def adapter_of_the_users(case: Case) -> Case:
    """A model that has an adapter already, which is trained further."""
    from peft import get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(_loaded(case), _lora(init_lora_weights="gaussian"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.02)
    return replace(case, model=model)


def _loaded(case: Case, **given: Any) -> Any:
    # transformers 5 loads what was saved, which is bfloat16; TRL loads float32
    return AutoModelForCausalLM.from_pretrained(case.model, **given).float()


def _dropping(name: str, **config: Any) -> Setting:
    """Return the setting of a model with dropout in its attention, and these arguments."""

    def change(case: Case) -> Case:
        return replace(case, model=_loaded(case, attention_dropout=0.1)).told(**config)

    return Setting(name, change)


def frozen_embeddings(case: Case) -> Case:
    model = _loaded(case)
    model.model.embed_tokens.weight.requires_grad_(False)
    return replace(case, model=model)


def _sizes(case: Case, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(case.tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "eos_token_id": case.tokenizer.eos_token_id,
        "pad_token_id": case.tokenizer.pad_token_id,
        "bos_token_id": None,
        **more,
    }


def _saved(model: Any) -> str:
    """A reference model is loaded from where the policy was, so that it stands in a folder."""
    folder = tempfile.mkdtemp(prefix="model-")
    model.save_pretrained(folder)
    return folder


def llama(case: Case) -> Case:
    """Weights are random, and head and embeddings are one."""
    torch.manual_seed(0)
    config = LlamaConfig(**_sizes(case, tie_word_embeddings=True))
    return replace(case, model=_saved(LlamaForCausalLM(config)))


def gemma(case: Case) -> Case:
    torch.manual_seed(0)
    return replace(case, model=_saved(GemmaForCausalLM(GemmaConfig(**_sizes(case, head_dim=16)))))


def pad_is_eos(case: Case) -> Case:
    case.tokenizer.pad_token = case.tokenizer.eos_token
    return case


def pad_missing(case: Case) -> Case:
    """TRL takes the end of turn instead."""
    case.tokenizer.pad_token = None
    return case


def another_end(case: Case) -> Case:
    """A reply ends with </think>, for tokenizer and model."""
    end = case.tokenizer.convert_tokens_to_ids("</think>")
    case.tokenizer.eos_token = "</think>"
    model = _loaded(case)
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    return replace(case, model=model)


def two_ends(case: Case) -> Case:
    """The model's generation config names a second token that ends a reply."""
    model = _loaded(case)
    end = case.tokenizer.convert_tokens_to_ids("</think>")
    model.generation_config.eos_token_id = [case.tokenizer.eos_token_id, end]
    return replace(case, model=model)


def generation_config_of_the_models(case: Case) -> Case:
    """The model's own config asks for other sampling, which the trainer's overrides."""
    model = _loaded(case)
    model.generation_config.temperature, model.generation_config.top_k = 0.5, 5
    model.generation_config.do_sample = True
    return replace(case, model=_saved(model))


SETTINGS: tuple[Setting, ...] = (
    *(_adapted("lora"), _adapted("lora-dropout", lora_dropout=0.1)),
    _adapted("lora-dropout-disabled", lora_dropout=0.1, disabled=True),
    _adapted("rank-stabilised", use_rslora=True),
    *(_adapted("dora", use_dora=True), setting(ia3)),
    *map(setting, (lora_all_layers, adapter_of_the_users)),
    Setting("model-object", lambda case: replace(case, model=_loaded(case))),
    Setting("bfloat16-weights", lambda case: replace(case, model=_loaded(case).bfloat16())),
    told("eager-attention", model_init_kwargs={"attn_implementation": "eager"}),
    *(_dropping("attention-dropout"), _dropping("dropout-disabled", disable_dropout=True)),
    *map(setting, (frozen_embeddings, llama, gemma, pad_is_eos, pad_missing, another_end)),
    setting(two_ends, since="1.16.0"),
    setting(generation_config_of_the_models, since="0.29.0"),
)
