"""Faults between sampling and training: tool turns, and tokens that are not those that were sampled."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import generated, method, next_group, the_one_before
from benchmarks.check.faults.weights import not_saved

_suffix = method("_get_tool_suffix_ids")  # the tokens of a tool's turn, of its messages


@faulty(_suffix)
def tool_turn_rendered_alone(trainer, usual, messages):
    begun = trainer.processing_class("<|im_start|>assistant\n")["input_ids"]
    return usual(messages)[: -len(begun)]


@faulty(_suffix)
def tool_result_as_a_user(trainer, usual, messages):
    text = "".join(f"<|im_start|>user\n{m['content']}<|im_end|>\n" for m in messages)
    return trainer.processing_class(f"\n{text}<|im_start|>assistant\n")["input_ids"]


faults(
    _suffix,
    tool_result_cut=lambda trainer, usual, messages: usual(
        [{**m, "content": m["content"][:8]} for m in messages]
    ),
    tool_result_of_another_row=lambda trainer, usual, messages: the_one_before(
        trainer, usual(messages)
    ),
)


def _sampled(case, change):
    """The case in which `change` makes the completions of those that were sampled."""

    def sampled(trainer, usual, prompts, *rest):
        prompt_ids, completion_ids, *more = usual(prompts, *rest)
        return prompt_ids, change(trainer, completion_ids), *more

    return method("_generate")(case, sampled)


@faulty(_sampled)
def text_round_trip(trainer, rows):
    tokenizer = trainer.processing_class
    words = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [tokenizer(said or " ")["input_ids"] for said in words]


def _each(case, change):
    """The case in which `change` makes each completion: of it and the token that ends one."""

    def changed(trainer, rows):
        return [change(row, trainer.processing_class.eos_token_id) for row in rows]

    return _sampled(case, changed)


faults(
    _each,
    end_of_turn_stripped=lambda row, end: row[:-1] if row[-1] == end and len(row) > 1 else row,
    end_of_turn_added=lambda row, end: row if row[-1] == end else [*row, end],
    replies_cut_for_training=lambda row, end: row[:8],
    one_token_lost=lambda row, end: row[1:] if len(row) > 1 else row,
)

faults(
    _sampled,
    replies_of_another_prompt=next_group,
)


@faulty(method("_generate"))
def trained_without_tools(trainer, usual, prompts, *rest):
    _, *more = usual(prompts, *rest)
    render = trainer.processing_class.apply_chat_template
    told = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    return [render(p, **told) for p in prompts], *more


def _with_the_prompts_end(trainer, batch):
    for of in ("ids", "mask"):
        prompt = batch[f"prompt_{of}"]
        batch[f"completion_{of}"] = torch.cat([prompt[:, -6:], batch[f"completion_{of}"]], 1)
        batch[f"prompt_{of}"] = prompt[:, :-6]
    return {**batch, "num_items_in_batch": batch["completion_mask"].sum()}


faults(generated, prompt_trained=_with_the_prompts_end)


@faulty()
def prompt_trained_and_adapter_lost(case: Case) -> Case:
    return not_saved(generated(case, _with_the_prompts_end))
