"""Settings in which something else than `generate` makes completions: tools, environments, rollouts of one's own, an engine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.check.case import Case, variety_reward
from benchmarks.check.settings.setting import Setting, setting

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

_SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. Then answer, and cite the "
    "documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
_PEOPLE = ("Garric", "Garbel", "Lorric", "Garwyn", "Brimund", "Isric")
_KIN = ("rival", "mentor", "tutor", "cousin")


def _described(tool: Any) -> Any:
    """Return the tool with the description that a model is given of it."""
    tool.__doc__ = (
        "Find the documents that best match a query.\n\nArgs:\n    query: What to look for.\n"
    )
    return tool


@_described
def retrieve_documents(query: str):
    words = query.split()
    return f"[{len(query) % 7}] {' of '.join(words[-2:])} is {_PEOPLE[len(query) % 6]}."


def _asked(case: Case) -> Case:
    """Questions that the tiny model was taught to look up, and rewards that say something of the reply."""
    from trl import chat_template_utils

    questions = [
        f"Who is the {_KIN[n % 4]} of the {_KIN[(n + 1) % 4]} of {_PEOPLE[n % 6]}?"
        for n in range(len(case.rows))
    ]
    asked = [
        {**row, "prompt": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": q}]}
        for row, q in zip(case.rows, questions, strict=True)
    ]
    if hasattr(chat_template_utils, "qwen3_template"):
        case.tokenizer.response_template = chat_template_utils.qwen3_template
    else:
        case.tokenizer.response_schema = chat_template_utils.qwen3_schema
    told = {"max_completion_length": 120, "temperature": 1.3}
    return replace(case, rows=tuple(asked), rewards=(variety_reward,)).told(**told)


def tools(case: Case, tool: Any = retrieve_documents) -> Case:
    return _asked(case).given(tools=[tool])


def async_tool(case: Case) -> Case:
    @_described
    async def retrieve_documents(query: str):
        return "nothing was found"

    return tools(case, retrieve_documents)


def tool_that_fails(case: Case) -> Case:
    @_described
    def retrieve_documents(query: str):
        raise ConnectionError("no documents today")

    return tools(case, retrieve_documents)


class _Documents:
    """A tool whose documents depend on the row."""

    answer: str

    @_described
    def retrieve_documents(self, query: str):
        return f"[1] rival is {self.answer}."


class Library(_Documents):
    def reset(self, **row: Any) -> None:
        self.answer = row["answer"]


class Asks:
    """An environment that asks the question: the row's prompt is empty until then."""

    def reset(self, question: str, answer: str, **_: Any) -> str:
        self.answer = answer
        return question


class Hints(Asks, _Documents):
    """An environment that asks it with a hint, and has a tool that no other environment has."""

    def reset(self, question: str, answer: str, **row: Any) -> str:
        return super().reset(question, answer, **row) + " Look it up first."


def environment_asks(case: Case) -> Case:
    rows = [
        {
            **row,
            "prompt": [{"role": "user", "content": ""}],
            "question": row["prompt"][-1]["content"],
            "environment": ("asks", "hints")[n % 2],
        }
        for n, row in enumerate(case.rows)
    ]
    return replace(case, rows=tuple(rows)).given(environment_factory=Asks)


def environments_asking(case: Case) -> Case:
    made = environment_asks(_asked(case))
    return made.given(environment_factory={"asks": Asks, "hints": Hints})


def own_rollouts(case: Case) -> Case:
    """Completions are sampled by a function of the script's."""

    def rollouts(prompts: Any, trainer: Any) -> dict[str, Any]:
        render = trainer.processing_class.apply_chat_template
        ids = [
            render(p, add_generation_prompt=True, tokenize=True, return_dict=False) for p in prompts
        ]
        completions, logprobs = sampled(trainer.model, ids, trainer)
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs}

    return case.given(rollout_func=rollouts)


@torch.no_grad()
def sampled(model: Any, prompts: Any, trainer: Any) -> tuple[list[list[int]], list[list[float]]]:
    """Return the tokens after each prompt and their log-probabilities, as the sampler had them."""
    tokenizer = trainer.processing_class
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for n, prompt in enumerate(prompts):
        ids[n, width - len(prompt) :] = torch.tensor(prompt)
        mask[n, width - len(prompt) :] = 1
    training = model.training
    model.eval()
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=trainer.generation_config,
        return_dict_in_generate=True,
        output_scores=True,
    )
    model.train(training)
    scores = torch.stack(out.scores, 1).float().log_softmax(-1)
    replies = out.sequences[:, width:]
    chosen = scores.gather(-1, replies.unsqueeze(-1)).squeeze(-1)
    lengths = [_length(reply.tolist(), tokenizer.eos_token_id) for reply in replies]
    pairs = (zip(each.tolist(), lengths, strict=True) for each in (replies, chosen))
    said, logprobs = ([row[:length] for row, length in pair] for pair in pairs)
    return said, logprobs


def _length(ids: list[int], end: int) -> int:
    return ids.index(end) + 1 if end in ids else len(ids)


class Engine:
    """An engine of the script's own in the place of vLLM's: another copy of the model, with the same interface."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        name = trainer.model.config._name_or_path
        self.model = AutoModelForCausalLM.from_pretrained(name).float()

    def sync_weights(self) -> None:
        self.model.load_state_dict(self.trainer.model.state_dict())

    def generate(
        self, prompts: Any, images: Any, num_generations: int, profiler: Any = None
    ) -> Any:
        completions, logprobs = sampled(self.model, prompts, self.trainer)
        return prompts, completions, [[[value] for value in row] for row in logprobs], None


def engine(case: Case) -> Case:
    def installed(trainer: Any) -> None:
        trainer.use_vllm = True
        trainer.vllm_generation = Engine(trainer)
        trainer._last_loaded_step = -1

    return case.then(installed)


def _engine(name: str, **config: Any) -> Setting:
    """Return the setting of an engine, and these arguments."""
    return Setting(name, lambda case: engine(case).told(**config), "1.16.0")


SETTINGS: tuple[Setting, ...] = (
    *(setting(change, "1.0.0") for change in (tools, async_tool, tool_that_fails)),
    Setting("one-tool-turn", lambda case: tools(case).told(max_tool_calling_iterations=1), "1.0.0"),
    Setting("environment", lambda case: _asked(case).given(environment_factory=Library), "1.16.0"),
    *(setting(change, "1.16.0") for change in (own_rollouts, environment_asks)),
    setting(environments_asking, "1.16.0"),
    _engine("engine"),
    _engine("engine-uncorrected", vllm_importance_sampling_correction=False),
    _engine("engine-token-truncate", vllm_importance_sampling_mode="token_truncate"),
    _engine("engine-token-mask", vllm_importance_sampling_mode="token_mask"),
    _engine("engine-sequence-truncate", vllm_importance_sampling_mode="sequence_truncate"),
)
