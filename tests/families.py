"""The families of models that we train: a tokenizer of bytes with each one's chat template, and tiny random models."""

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_LLAMA = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|python_tag|>",
    "<|eom_id|>",
)
# template in TRL -> end of turn, and the other special tokens
TEMPLATES = {
    "qwen2_5": ("<|im_end|>", ("<|im_start|>",)),
    "qwen3": ("<|im_end|>", ("<|im_start|>",)),
    "qwen3_instruct_2507": ("<|im_end|>", ("<|im_start|>",)),
    "llama3_1": ("<|eot_id|>", _LLAMA),
    "llama3_2": ("<|eot_id|>", _LLAMA),
}
# rotary positions over a length of pretraining in which all three parts of the scaling are at work
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# by template: what a model of the family is told beside its sizes
MODELS: dict[str, dict[str, Any]] = {
    "qwen2_5": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "llama3_1": {"model_type": "llama", "rope_parameters": LLAMA_3},
}

# architectures that our own sampler does not read, with a template that any of them may have
OTHERS: dict[str, dict[str, Any]] = {
    # absolute positions, layers that hold their weights the other way round, dropout in its config
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 2048},
    # windows, logits that are capped, embeddings that are scaled
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 8,
        "sliding_window": 16,
        "final_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 8,
    },
    "sliding": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 1,
    },
    "yarn": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
    },
}


def template_of(name: str) -> str:
    """Return TRL's copy of a chat template, or skip the test where it is not installed."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("trl is not installed: no copies of the families' chat templates")
    file = Path(found.origin).parent / "chat_templates" / f"{name}.jinja"
    return file.read_text(encoding="utf-8")


def byte_tokenizer(template: str, end: str, specials: Sequence[str]) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (end, *specials)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        bos_token=specials[0],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def save_family(folder: Path, name: str, random_model: Callable[..., Any]) -> Any:
    """Save a tiny random model of that family and its tokenizer as transformers does; return the model.

    Its config.json names the tokens that end a turn, as those on the hub do.
    """
    template = "qwen2_5" if name in OTHERS else name
    end, specials = TEMPLATES[template]
    tokenizer = byte_tokenizer(template_of(template), end, specials)
    ends = [text for text in (end, "<|eom_id|>") if text in tokenizer.get_vocab()]
    ids = tokenizer.convert_tokens_to_ids(ends)
    told = {**MODELS, **OTHERS}[name]
    model = random_model(
        3,
        vocab_size=len(tokenizer),
        num_key_value_heads=2,
        eos_token_id=ids if len(ids) > 1 else ids[0],
        **told,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] in told.values()
    return model


def build_qwen3_tokenizer(path: Path, texts: list[str]) -> Path:
    """Save it to the folder `path`. Merges are learnt from `texts`. Needs TRL to be installed."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations
    template = Path(spec.submodule_search_locations[0]) / "chat_templates" / "qwen3.jinja"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, "a\n\nb\n\nc"], trainer)
    names = ("tool_call", "tool_response", "think")
    tags = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
    ).save_pretrained(path)
    return path
