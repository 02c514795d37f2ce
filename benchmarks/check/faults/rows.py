"""Faults before anything is sampled: which rows stand together, and what their prompts become."""

from __future__ import annotations

import random

from torch.utils.data import Sampler

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import method, next_group


class Reordered(Sampler[int]):
    """Another sampler's rows, in the order that `change` makes of them."""

    def __init__(self, sampler, change):
        self.sampler, self.change = sampler, change

    def __iter__(self):
        return iter(self.change(list(self.sampler)))

    def __len__(self):
        return len(self.sampler)


def _reordered(case, change):
    """The case in which `change` makes the order of all rows: of the trainer, them and how many a batch has."""

    def reordered(trainer, usual, *args):
        size = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
        return Reordered(usual(*args), lambda rows: change(trainer, rows, size))

    return method("_get_train_sampler")(case, reordered)


def _in_batches(case, change):
    """The case in which `change` makes the order of each batch."""

    def changed(trainer, rows, size):
        batches = [rows[n : n + size] for n in range(0, len(rows), size)]
        return [row for batch in batches for row in change(trainer, batch)]

    return _reordered(case, changed)


@faulty(_in_batches)
def groups_of_two_prompts(trainer, batch):
    half = trainer.num_generations // 2
    return [*batch[half:], *batch[:half]]


@faulty(_in_batches)
def groups_interleaved(trainer, batch):
    size = trainer.num_generations
    return [batch[n] for first in range(size) for n in range(first, len(batch), size)]


@faulty()
def rows_shuffled_by_the_collator(case: Case) -> Case:
    rng = random.Random(0)

    def collate(trainer):
        trainer.data_collator = lambda rows: rng.sample(rows, len(rows))

    return case.then(collate)


@faulty(_reordered)
def same_batch_every_step(trainer, rows, size):
    return [*rows[:size]] * (len(rows) // size)


@faulty(_in_batches)
def one_row_in_each_group_replaced(trainer, batch):
    size = trainer.num_generations
    return [batch[0] if n % size == size - 1 else row for n, row in enumerate(batch)]


@faulty(method("_generate"))
def system_message_dropped(trainer, usual, prompts, *rest):
    return usual([[m for m in p if m["role"] != "system"] for p in prompts], *rest)


_tokenized = method("_tokenize_prompts")


def _prompts(case, change):
    """The case whose prompts are `change` of their right ids and of what they are made from."""

    def changed(trainer, usual, prompts):
        ids, *rest = usual(prompts)
        return change(trainer, ids, prompts), *rest

    return _tokenized(case, changed)


faults(
    _prompts,
    prompt_cut_at_its_end=lambda trainer, ids, prompts: [row[:24] for row in ids],
    prompt_cut_at_its_beginning=lambda trainer, ids, prompts: [row[-24:] for row in ids],
    prompts_of_the_next_rows=lambda trainer, ids, prompts: next_group(trainer, ids),
    first_token_twice=lambda trainer, ids, prompts: [[row[0], *row] for row in ids],
)


@faulty(_prompts)
def generation_prompt_missing(trainer, ids, prompts):
    render = trainer.processing_class.apply_chat_template
    return [render(p, tokenize=True, return_dict=False) for p in prompts]


@faulty(Case.then)
def template_of_another_family(trainer):
    each = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    trainer.chat_template = f"{each}[assistant] "


@faulty(_tokenized)
def prompt_without_tools(trainer, usual, prompts):
    tools, trainer.tools = trainer.tools, []
    try:
        return usual(prompts)
    finally:
        trainer.tools = tools


@faulty(_tokenized)
def thoughts_of_earlier_turns_stripped(trainer, usual, prompts):
    def stripped(message):
        return {**message, "content": message["content"].rpartition("</think>")[2]}

    return usual([[stripped(m) for m in p] for p in prompts])
