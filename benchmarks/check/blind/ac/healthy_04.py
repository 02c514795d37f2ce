"""GRPO with a calculator; numbers in an answer are calls."""
import os
import re
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def square(number: int) -> str:
    """Returns the square of a number.

    Args:
        number: The number.

    Returns:
        The square, as text.
    """
    return f"{number} squared is {number * number}"


class CallByNumberTrainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        self._suffix_ids = {}
        super().__init__(*args, **kwargs)

    def _tool_call_loop(self, prompts, prompt_ids, completion_ids, completions, *rest):
        for completion in completions:
            message = completion[0]
            number = re.search(r"\d{1,3}", message.get("content") or "")
            if number and not message.get("tool_calls"):
                call = {"name": "square", "arguments": {"number": int(number.group())}}
                message["tool_calls"] = [{"type": "function", "function": call}]
        return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *rest)

    def _get_tool_suffix_ids(self, tool_messages):
        # Two renderings of the template per call are slow with many rollouts
        key = tuple((message["name"], message["content"]) for message in tool_messages)
        if key not in self._suffix_ids:
            self._suffix_ids[key] = super()._get_tool_suffix_ids(tool_messages)
        return list(self._suffix_ids[key])


def tidy(completions, **kwargs):
    scores = []
    for messages in completions:
        text = "".join(m.get("content") or "" for m in messages if m["role"] == "assistant")
        scores.append(len(set(text)) / 15 + 0.01 * len(text) + 0.2 * (len(messages) > 1))
    return scores


def main():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.response_template = qwen3_template
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": q}]} for q in ("Look up the capital of France.", "12 * 4 =", "hello")] * 4
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=16,
        num_generations=8,
        max_completion_length=80,
        max_tool_calling_iterations=1,
        temperature=1.5,
        learning_rate=3e-5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = CallByNumberTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=tidy,
        args=args,
        train_dataset=data,
        tools=[square],
    )
    trainer.train()


if __name__ == "__main__":
    main()
