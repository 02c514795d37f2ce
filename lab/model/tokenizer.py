"""Builds the tiny model's tokenizer: any Unicode text by bytes, the synthetic tasks by whole fragments.

Fragments are ordinary text (`{"name": "retrieve_documents", ...` is one token), so conversations keep
Qwen's real format and Hermes' real tool calls at a fraction of the tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlvr_debug.environments import gsm8k, musique
from rlvr_debug.environments.musique.rows import ENTITIES, RELATIONS
from rlvr_debug.files import read_json, write_json

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# of Qwen2.5's conversation format, which chat_template.jinja is, with tools in Hermes' convention
TOOLS_BEFORE = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    'within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, '
    '"arguments": <args-json-object>}\n</tool_call>'
)

CALL_BEFORE = '<tool_call>\n{"name": "retrieve_documents", "arguments": {"query": "look up'
CALL_AFTER = '"}}\n</tool_call>'
WRONG_FORMAT = "The answer is "
_LARGEST_NUMBER = 99
_PARAGRAPHS = 20  # of a MuSiQue row


def build_tokenizer(more: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return the tiny model's tokenizer, with these fragments after its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    # as Qwen's: transformers 5 reads a Qwen2 model's tokenizer with it, whatever the file has
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (PAD, START, END)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in [*_fragments(), *more]])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=_chat_template(),
        clean_up_tokenization_spaces=False,
        # transformers 4 would add token_type_ids, which a Qwen2 model does not take
        model_input_names=["input_ids", "attention_mask"],
    )


def rename_for_older(folder: Path) -> None:
    """Name what transformers 5 saved so that 4.48 reads it too: the tokenizer's class, and the base of positions."""
    tokenizer, config = folder / "tokenizer_config.json", folder / "config.json"
    named = {**read_json(tokenizer), "tokenizer_class": "PreTrainedTokenizerFast"}
    del named["backend"]
    model = read_json(config)
    model["rope_theta"] = model["rope_parameters"]["rope_theta"]
    write_json(tokenizer, named)
    write_json(config, model)


def _chat_template() -> str:
    text = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8").strip()
    for name, words in {"TOOLS_BEFORE": TOOLS_BEFORE, "TOOLS_AFTER": TOOLS_AFTER}.items():
        escaped = words.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        text = text.replace(name, f"'{escaped}'")
    return text


def _fragments() -> list[str]:
    fragments = [
        *("system\n", "user\n", "assistant\n"),
        *("<tool_response>\n", "\n</tool_response>"),
        *(musique.SYSTEM, TOOLS_BEFORE + "\n", json.dumps(musique.TOOL), TOOLS_AFTER),
        *("Who is the", " of the", " of", "\nTies:"),
        *("<think>", "</think>", CALL_BEFORE, CALL_AFTER),
        *("<answer>", "</answer>\n<cite>", "</cite>"),
        *(f"[{i}]" for i in range(_PARAGRAPHS)),
        *(f" {relation}" for relation in RELATIONS),
        *(f" {entity}" for entity in ENTITIES),
        *(gsm8k.SYSTEM, "There are <<", gsm8k.STEP_BEFORE, ">>", "#### ", WRONG_FORMAT, "\n\n"),
        *(" has ", " boxes with ", " each.", " How many", " does ", " have?", " Each costs "),
        *(" coins", gsm8k.COINS_QUESTION),
        *gsm8k.NAMES,
        *(f" {item}" for item in gsm8k.ITEMS),
        *(str(number) for number in range(10, _LARGEST_NUMBER + 1)),
    ]
    return list(dict.fromkeys(fragments))
