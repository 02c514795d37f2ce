import os
import random
import tempfile

from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class TokenWarmupTrainer(GRPOTrainer):
    """The rate rises with the number of tokens that were trained on, not with the number of steps."""

    warmup_tokens = 200
    trained_tokens = 0

    def _factor(self, _step):
        return max(0.05, min(1.0, self.trained_tokens / self.warmup_tokens))

    def create_scheduler(self, num_training_steps, optimizer=None):
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self._factor)
        return self.lr_scheduler

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if self.model.training:
            self.trained_tokens += int(inputs["completion_mask"].sum())
        return loss


def words():
    rng = random.Random(31)
    pool = ["tree", "window", "mountain", "sugar", "pencil", "ocean", "doctor", "yellow", "train", "forest"]
    return [{"prompt": [{"role": "user", "content": f"Spell '{rng.choice(pool)}' backwards."}]} for _ in range(40)]


def backwards(prompts, completions, **kwargs):
    scores = []
    for prompt, completion in zip(prompts, completions):
        word = prompt[-1]["content"].split("'")[1]
        text = completion[0]["content"]
        scores.append(sum(letter in text for letter in word) / len(word) + float(word[::-1] in text))
    return scores


def length(completion_ids, **kwargs):
    return [-0.02 * len(ids) for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=os.path.join(tempfile.gettempdir(), "spell"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=24,
        max_steps=4,
        learning_rate=3e-4,
        weight_decay=0.01,
        loss_type="dapo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = TokenWarmupTrainer(
        model=MODEL, args=args, reward_funcs=[backwards, length], train_dataset=Dataset.from_list(words())
    )
    trainer.train()


if __name__ == "__main__":
    main()
