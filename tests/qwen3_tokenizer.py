"""A small tokenizer of Qwen3's conversation format: merges learnt here, the chat template from TRL."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["build_qwen3_tokenizer"]


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
