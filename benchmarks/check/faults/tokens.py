"""Faults between sampling and training: tool turns, and tokens that are not those that were sampled."""

from __future__ import annotations

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import generated, method
from benchmarks.check.faults.weights import not_saved

_suffix = method("_get_tool_suffix_ids")  # the tokens of a tool's turn, of its messages


@faulty(_suffix)
def tool_turn_rendered_alone(trainer, usual, messages):
    """The generation prompt after a tool's turn is missing."""
    begun = trainer.processing_class("<|im_start|>assistant\n")["input_ids"]
    return usual(messages)[: -len(begun)]


@faulty(_suffix)
def tool_result_cut(trainer, usual, messages):
    """What a tool returned is cut to its first eight characters before the model reads it."""
    return usual([{**m, "content": m["content"][:8]} for m in messages])


@faulty(_suffix)
def tool_result_as_a_user(trainer, usual, messages):
    """What a tool returned is rendered as a user's message."""
    text = "".join(f"<|im_start|>user\n{m['content']}<|im_end|>\n" for m in messages)
    return trainer.processing_class(f"\n{text}<|im_start|>assistant\n")["input_ids"]


@faulty(_suffix)
def tool_result_of_another_row(trainer, usual, messages):
    """Each row reads what the tool returned to the row before."""
    mine = usual(messages)
    before, trainer.before = getattr(trainer, "before", mine), mine
    return before


def _sampled(case, change):
    """The case in which `change` makes the completions of those that were sampled."""

    def sampled(trainer, usual, prompts, *rest):
        prompt_ids, completion_ids, *more = usual(prompts, *rest)
        return prompt_ids, change(trainer, completion_ids), *more

    return method("_generate")(case, sampled)


@faulty(_sampled)
def text_round_trip(trainer, rows):
    """Completions go through their text without special tokens and are tokenised anew."""
    tokenizer = trainer.processing_class
    words = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return [tokenizer(said or " ")["input_ids"] for said in words]


@faulty(_sampled)
def end_of_turn_stripped(trainer, rows):
    """The token that ends a reply is taken off before training."""
    end = trainer.processing_class.eos_token_id
    return [row[:-1] if row[-1] == end and len(row) > 1 else row for row in rows]


@faulty(_sampled)
def end_of_turn_added(trainer, rows):
    """Replies that were cut get a token at their end that nobody sampled."""
    end = trainer.processing_class.eos_token_id
    return [row if row[-1] == end else [*row, end] for row in rows]


@faulty(_sampled)
def replies_cut_for_training(trainer, rows):
    """Only the first eight tokens of each reply are trained, to save memory."""
    return [row[:8] for row in rows]


@faulty(_sampled)
def replies_of_another_prompt(trainer, rows):
    """Replies are gathered in the wrong order: each group is trained with the next one's."""
    size = trainer.num_generations
    return [*rows[size:], *rows[:size]]


@faulty(_sampled)
def one_token_lost(trainer, rows):
    """The first token of each reply is lost, as by an index that is off by one."""
    return [row[1:] if len(row) > 1 else row for row in rows]


@faulty(method("_generate"))
def trained_without_tools(trainer, usual, prompts, *rest):
    """The sampler reads the tools, and the prompt that is trained has none."""
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


@faulty()
def prompt_trained(case: Case) -> Case:
    """The end of the prompt is trained like the reply."""
    return generated(case, _with_the_prompts_end)


@faulty()
def prompt_trained_and_adapter_lost(case: Case) -> Case:
    """Two faults: the end of the prompt is trained, and what was trained is not saved."""
    return not_saved(generated(case, _with_the_prompts_end))
