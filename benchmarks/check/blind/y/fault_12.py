"""GRPO with a similarity reward: 64-bit simhash of the completion against a reference text."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
BITS = 64


def simhash(text, n=2):
    """Signs of the sum over the text's n-grams of +-1 vectors, one vector for each n-gram."""
    votes = [0] * BITS
    for i in range(max(len(text) - n + 1, 1)):
        h = hash(text[i:i + n])
        for bit in range(BITS):
            votes[bit] += 1 if (h >> bit) & 1 else -1
    return [v > 0 for v in votes]


def similarity(completions, reference, **kwargs):
    scores = []
    for completion, target in zip(completions, reference):
        a, b = simhash(completion[0]["content"]), simhash(target)
        scores.append(sum(x == y for x, y in zip(a, b)) / BITS)
    return scores


def main():
    pairs = [
        ("Add 2 and 3.", "The sum is 5."), ("Add 4 and 9.", "The sum is 13."),
        ("Name a colour.", "Blue is a colour."), ("Name an animal.", "A horse is an animal."),
        ("Say hello.", "Hello, how are you?"), ("Say goodbye.", "Goodbye, see you soon."),
        ("Count to 3.", "1, 2, 3"), ("Count to 5.", "1, 2, 3, 4, 5"),
        ("Name a city.", "Lisbon is a city."), ("Name a tool.", "A hammer is a tool."),
        ("What is ice?", "Ice is frozen water."), ("What is fog?", "Fog is a low cloud."),
    ]
    rows = [{"prompt": [{"role": "user", "content": q}], "reference": r} for q, r in pairs]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        max_steps=3, logging_steps=1, learning_rate=2e-5, seed=2,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=8,
        max_completion_length=24, temperature=1.4, loss_type="dapo", epsilon_high=0.28,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        args=config,
        reward_funcs=similarity,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()


if __name__ == "__main__":
    main()
