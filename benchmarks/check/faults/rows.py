"""Faults before anything is sampled: which rows stand together, and what their prompts become."""

from __future__ import annotations

import random
from dataclasses import replace

from torch.utils.data import Sampler

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty


class Reordered(Sampler[int]):
    """Another sampler's rows, in the order that `change` makes of them."""

    def __init__(self, sampler, change):
        self.sampler, self.change = sampler, change

    def __iter__(self):
        return iter(self.change(list(self.sampler)))

    def __len__(self):
        return len(self.sampler)


def _reordered(case, change):
    class Trainer(case.trainer):
        def _get_train_sampler(self, *args):
            size = self.args.per_device_train_batch_size * self.args.steps_per_generation
            sampler = super()._get_train_sampler(*args)
            return Reordered(sampler, lambda rows: change(self, rows, size))

    return replace(case, trainer=Trainer)


def _in_batches(change):
    def changed(trainer, rows, size):
        batches = [rows[n : n + size] for n in range(0, len(rows), size)]
        return [row for batch in batches for row in change(trainer, batch)]

    return changed


@faulty(
    "groups", origin="known", source="PeterGriffinJin/Search-R1 88", causes=("group-construction",)
)
def groups_of_two_prompts(case: Case) -> Case:
    """The second half of each group is of the next prompt: groups are counted by ids that do not match the prompts."""

    def halves(trainer, batch):
        half = trainer.num_generations // 2
        return [*batch[half:], *batch[:half]]

    return _reordered(case, _in_batches(halves))


@faulty("groups", origin="own", causes=("group-construction",))
def groups_interleaved(case: Case) -> Case:
    """Rows come as a, b, c, d, a, b, c, d, and advantages take the first four for a group."""

    def interleaved(trainer, batch):
        size = trainer.num_generations
        return [batch[n] for first in range(size) for n in range(first, len(batch), size)]

    return _reordered(case, _in_batches(interleaved))


@faulty("groups", origin="own", causes=("group-construction",))
def rows_shuffled_by_the_collator(case: Case) -> Case:
    """A collator shuffles the rows of a generation batch, as one does for supervised training."""
    rng = random.Random(0)

    def collate(trainer):
        trainer.data_collator = lambda rows: rng.sample(rows, len(rows))

    return case.then(collate)


@faulty("groups", origin="benchmark", source="hpcaitech/ColossalAI 3894")
def same_batch_every_step(case: Case) -> Case:
    """The sampler begins again at each step, so that every step has the same questions."""

    def repeated(trainer, rows, size):
        return [*rows[:size]] * (len(rows) // size)

    return _reordered(case, repeated)


@faulty("groups", origin="own", causes=("group-construction",))
def one_row_in_each_group_replaced(case: Case) -> Case:
    """The last row of each group is another prompt, taken from the beginning of the batch."""

    def replaced(trainer, batch):
        size = trainer.num_generations
        return [batch[0] if n % size == size - 1 else row for n, row in enumerate(batch)]

    return _reordered(case, _in_batches(replaced))


@faulty("prompt", origin="own", since="0.29.0")
def system_message_dropped(case: Case) -> Case:
    """The system message is taken off before the template is applied."""

    class Trainer(case.trainer):
        def _generate(self, prompts, *rest):
            return super()._generate(
                [[m for m in p if m["role"] != "system"] for p in prompts], *rest
            )

    return replace(case, trainer=Trainer)


@faulty("prompt", origin="own", since="1.0.0", causes=("sequence-mismatch",))
def prompt_cut_at_its_end(case: Case) -> Case:
    """Prompts are cut to 24 tokens from the right, so that the question's end and the turn's beginning are lost."""

    class Trainer(case.trainer):
        def _tokenize_prompts(self, prompts):
            ids, *rest = super()._tokenize_prompts(prompts)
            return [row[:24] for row in ids], *rest

    return replace(case, trainer=Trainer)


@faulty("prompt", origin="own", since="1.0.0", causes=("context-truncation",))
def prompt_cut_at_its_beginning(case: Case) -> Case:
    """Prompts are cut to their last 24 tokens."""

    class Trainer(case.trainer):
        def _tokenize_prompts(self, prompts):
            ids, *rest = super()._tokenize_prompts(prompts)
            return [row[-24:] for row in ids], *rest

    return replace(case, trainer=Trainer)


@faulty("prompt", origin="own", since="1.0.0", causes=("sequence-mismatch",))
def generation_prompt_missing(case: Case) -> Case:
    """The prompt ends with the user's turn, and the assistant's is not begun."""

    class Trainer(case.trainer):
        def _tokenize_prompts(self, prompts):
            _, *rest = super()._tokenize_prompts(prompts)
            render = self.processing_class.apply_chat_template
            return [render(p, tokenize=True, return_dict=False) for p in prompts], *rest

    return replace(case, trainer=Trainer)


@faulty("prompt", origin="own", since="1.0.0")
def first_token_twice(case: Case) -> Case:
    """The tokenizer adds a first token that the template has already."""

    class Trainer(case.trainer):
        def _tokenize_prompts(self, prompts):
            ids, *rest = super()._tokenize_prompts(prompts)
            return [[row[0], *row] for row in ids], *rest

    return replace(case, trainer=Trainer)


@faulty("prompt", origin="own", since="1.0.0")
def prompts_of_the_next_rows(case: Case) -> Case:
    """Prompts are handed out one group too far, and rewards still judge by the row's own answer."""

    class Trainer(case.trainer):
        def _tokenize_prompts(self, prompts):
            ids, *rest = super()._tokenize_prompts(prompts)
            size = self.num_generations
            return [*ids[size:], *ids[:size]], *rest

    return replace(case, trainer=Trainer)


@faulty("prompt", origin="own", since="1.0.0")
def template_of_another_family(case: Case) -> Case:
    """The trainer is given a chat template that the model was not taught."""
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "

    def told(trainer):
        trainer.chat_template = template

    return case.then(told)


@faulty(
    "prompt",
    origin="library",
    source="verifiers 0.1.3, envs/environment.py",
    causes=("sequence-mismatch",),
    setting="tools",
    since="1.0.0",
)
def prompt_without_tools(case: Case) -> Case:
    """The prompt is rendered without the tools that the model may call."""

    class Trainer(case.trainer):
        def _tokenize_prompts(self, prompts):
            tools, self.tools = self.tools, []
            try:
                return super()._tokenize_prompts(prompts)
            finally:
                self.tools = tools

    return replace(case, trainer=Trainer)


@faulty(
    "prompt",
    origin="known",
    source="prime-rl 1334, verl 6854",
    causes=("eval-train-mismatch",),
    setting="several-turns",
    since="1.0.0",
)
def thoughts_of_earlier_turns_stripped(case: Case) -> Case:
    """The turns before are rendered without what the model thought there."""

    class Trainer(case.trainer):
        def _tokenize_prompts(self, prompts):
            return super()._tokenize_prompts([[stripped(m) for m in p] for p in prompts])

    def stripped(message):
        return {**message, "content": message["content"].rpartition("</think>")[2]}

    return replace(case, trainer=Trainer)
