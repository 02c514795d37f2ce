"""Faults between sampling and training: tool turns, and tokens that are not those that were sampled."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_TOOLS = {"setting": "tools", "since": "1.0.0"}


def _suffix(case, change):
    """The case in which `change` makes the tokens of a tool's turn: of those before, and the messages."""

    class Trainer(case.trainer):
        def _get_tool_suffix_ids(self, tool_messages):
            return change(self, super()._get_tool_suffix_ids, tool_messages)

    return replace(case, trainer=Trainer)


@faulty(
    "tool turns",
    origin="library",
    source="verifiers 0.1.3, envs/environment.py",
    causes=("sequence-mismatch",),
    **_TOOLS,
)
def tool_turn_rendered_alone(case: Case) -> Case:
    """The generation prompt after a tool's turn is missing."""

    def alone(trainer, usual, messages):
        begun = trainer.processing_class("<|im_start|>assistant\n")["input_ids"]
        return usual(messages)[: -len(begun)]

    return _suffix(case, alone)


@faulty("tool turns", origin="own", causes=("context-truncation",), **_TOOLS)
def tool_result_cut(case: Case) -> Case:
    """What a tool returned is cut to its first eight characters before the model reads it."""
    return _suffix(
        case, lambda _, usual, said: usual([{**m, "content": m["content"][:8]} for m in said])
    )


@faulty("tool turns", origin="own", causes=("sequence-mismatch",), **_TOOLS)
def tool_result_as_a_user(case: Case) -> Case:
    """What a tool returned is rendered as a user's message."""

    def as_user(trainer, usual, messages):
        text = "".join(f"<|im_start|>user\n{m['content']}<|im_end|>\n" for m in messages)
        return trainer.processing_class(f"\n{text}<|im_start|>assistant\n")["input_ids"]

    return _suffix(case, as_user)


@faulty("tool turns", origin="own", setting="environment", since="1.16.0")
def tool_result_of_another_row(case: Case) -> Case:
    """Each row reads what the tool returned to the row before."""

    def rolled(trainer, usual, messages):
        mine = usual(messages)
        before, trainer.before = getattr(trainer, "before", mine), mine
        return before

    return _suffix(case, rolled)


def _sampled(case, change):
    """The case in which `change` makes the completions of those that were sampled."""

    class Trainer(case.trainer):
        def _generate(self, prompts, *rest):
            prompt_ids, completion_ids, *more = super()._generate(prompts, *rest)
            return prompt_ids, change(self, completion_ids), *more

    return replace(case, trainer=Trainer)


@faulty(
    "tokens",
    origin="benchmark",
    source="rllm-org/rllm PR 272",
    causes=("sampler-mismatch", "sequence-mismatch"),
    since="0.29.0",
)
def text_round_trip(case: Case) -> Case:
    """Completions go through their text without special tokens and are tokenised anew."""

    def again(trainer, rows):
        tokenizer = trainer.processing_class
        words = tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [tokenizer(said or " ")["input_ids"] for said in words]

    return _sampled(case, again)


@faulty("tokens", origin="own", causes=("token-masking",), since="0.29.0")
def end_of_turn_stripped(case: Case) -> Case:
    """The token that ends a reply is taken off before training."""

    def stripped(trainer, rows):
        end = trainer.processing_class.eos_token_id
        return [row[:-1] if row[-1] == end and len(row) > 1 else row for row in rows]

    return _sampled(case, stripped)


@faulty("tokens", origin="own", causes=("sequence-mismatch",), since="0.29.0")
def end_of_turn_added(case: Case) -> Case:
    """Replies that were cut get a token at their end that nobody sampled."""

    def ended(trainer, rows):
        end = trainer.processing_class.eos_token_id
        return [row if row[-1] == end else [*row, end] for row in rows]

    return _sampled(case, ended)


@faulty("tokens", origin="own", causes=("context-truncation",), since="0.29.0")
def replies_cut_for_training(case: Case) -> Case:
    """Only the first eight tokens of each reply are trained, to save memory."""
    return _sampled(case, lambda _, rows: [row[:8] for row in rows])


@faulty("tokens", origin="own", causes=("group-construction",), since="0.29.0")
def replies_of_another_prompt(case: Case) -> Case:
    """Replies are gathered in the wrong order: each group is trained with the next one's."""

    def rolled(trainer, rows):
        size = trainer.num_generations
        return [*rows[size:], *rows[:size]]

    return _sampled(case, rolled)


@faulty("tokens", origin="own", since="0.29.0")
def one_token_lost(case: Case) -> Case:
    """The first token of each reply is lost, as by an index that is off by one."""
    return _sampled(case, lambda _, rows: [row[1:] if len(row) > 1 else row for row in rows])


@faulty(
    "tokens",
    "prompt",
    origin="own",
    source="verifiers 0.1.3, envs/environment.py, as it was: sampled with tools, trained without",
    causes=("sequence-mismatch",),
    why="the trained prompt is not the one that was sampled after, and not what the template makes of the row",
    **_TOOLS,
)
def trained_without_tools(case: Case) -> Case:
    """The sampler reads the tools, and the prompt that is trained has none."""

    class Trainer(case.trainer):
        def _generate(self, prompts, *rest):
            _, *more = super()._generate(prompts, *rest)
            render = self.processing_class.apply_chat_template
            told = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
            return [render(p, **told) for p in prompts], *more

    return replace(case, trainer=Trainer)


def _prompt_trained(case):
    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            moved = 6
            for name, value in (
                ("completion_ids", "prompt_ids"),
                ("completion_mask", "prompt_mask"),
            ):
                output[name] = torch.cat([output[value][:, -moved:], output[name]], 1)
                output[value] = output[value][:, :-moved]
            output["num_items_in_batch"] = output["completion_mask"].sum()
            return output

    return replace(case, trainer=Trainer)


@faulty(
    "tokens",
    "loss mask",
    origin="benchmark",
    source="prime-rl PR 540",
    causes=("token-masking",),
    why="TRL's mask has no prompt, so that tokens of it have to be moved to the reply: what is trained was not sampled",
)
def prompt_trained(case: Case) -> Case:
    """The end of the prompt is trained like the reply."""
    return _prompt_trained(case)


@faulty(
    "tokens",
    "loss mask",
    origin="benchmark",
    source="prime-rl PR 540; verl 5325",
    causes=("token-masking", "eval-train-mismatch"),
    why="the first of two faults counts, and it is prompt-trained",
)
def prompt_trained_and_adapter_lost(case: Case) -> Case:
    """Two faults: the end of the prompt is trained, and what was trained is not saved."""
    from benchmarks.check.faults.weights import not_saved

    return not_saved(_prompt_trained(case))
