"""Search environment: every rollout has its own knowledge base and scores itself."""
import os
import random
import tempfile

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
NAMES = ["Aldora", "Brimund", "Corvek", "Danwyn", "Elric", "Fentas", "Garnia", "Holbel"]
RELATIONS = ["mentor", "rival", "spouse", "patron", "tutor", "cousin"]


class SearchEnvironment:
    def __init__(self):
        self.facts, self.queries, self.hits = {}, [], 0

    def reset(self, world=0, **kwargs):
        rng = random.Random(world)
        self.facts = {(n, r): rng.choice(NAMES) for n in NAMES for r in RELATIONS}
        self.queries, self.hits = [], 0

    def retrieve_documents(self, query: str):
        """
        Find the documents that best match a query.

        Args:
            query: What to look for.
        """
        words = query.split()
        found = [who for (n, r), who in self.facts.items() if n in words and r in words]
        if query not in self.queries:
            self.hits += len(found)
        self.queries.append(query)
        return f"[{len(self.queries)}] {found[0]}" if found else "[0]"

    def get_reward(self):
        return 0.5 * self.hits - 0.2 * max(len(self.queries) - 2, 0)


def brief(completion_ids, **kwargs):
    return [-len(ids) / 100 for ids in completion_ids]


def main():
    rows = [
        {"prompt": [{"role": "user", "content": f"Who is the {r} of the {s} of {n}?"}], "world": i % 5}
        for i, (n, r, s) in enumerate((n, r, s) for n in NAMES for r in RELATIONS[:2] for s in RELATIONS[2:])
    ]
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    tokenizer.response_template = qwen3_template
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=brief,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=80,
            max_tool_calling_iterations=3,
            temperature=1.5,
            learning_rate=3e-5,
            loss_type="cispo",
            epsilon_high=5.0,
            max_steps=3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=SearchEnvironment,
    )
    trainer.train()


if __name__ == "__main__":
    main()
