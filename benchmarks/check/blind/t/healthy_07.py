"""Streamed plain-text prompts, restricted sampling, CISPO, and a reward for being different within one's group."""
import os
import tempfile
from collections import Counter, defaultdict

from datasets import IterableDataset
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def stream():
    k = 0
    while True:
        yield {"prompt": "The list: " + ", ".join(str(n) for n in range(k % 5 + 1)) + ","}
        k += 1


def different(prompts, completions, **kwargs):
    """Share of one's characters that the group's other completions use rarely."""
    counts = defaultdict(Counter)
    for prompt, completion in zip(prompts, completions):
        counts[prompt].update(set(completion))
    scores = []
    for prompt, completion in zip(prompts, completions):
        chars = set(completion)
        scores.append(sum(1 / counts[prompt][ch] for ch in chars) / max(len(chars), 1))
    return scores


def plain(completions, **kwargs):
    return [sum(ch.isascii() for ch in c) / max(len(c), 1) for c in completions]


trainer = GRPOTrainer(
    model=TINY,
    reward_funcs=[different, plain],
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=8,
        generation_batch_size=16,
        num_generations=4,
        max_completion_length=14,
        pad_to_multiple_of=8,
        top_k=200,
        min_p=0.01,
        generation_kwargs={"suppress_tokens": [256, 257]},
        loss_type="cispo",
        epsilon_high=5.0,
        shuffle_dataset=False,
        learning_rate=1e-4,
    ),
    train_dataset=IterableDataset.from_generator(stream),
)
trainer.train()
