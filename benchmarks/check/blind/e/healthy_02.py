import os
import random
import tempfile

import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def mean_of_ranks(group, bucket):
    """The usual mean, divided before the sum so that large gradients cannot overflow."""
    buffer = bucket.buffer().div_(dist.get_world_size(group))
    future = dist.all_reduce(buffer, group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


class RegisterHook(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        if isinstance(self.trainer.model_wrapped, DistributedDataParallel):
            self.trainer.model_wrapped.register_comm_hook(dist.group.WORLD, mean_of_ranks)


def make_dataset():
    rng = random.Random(3)
    rows = []
    for _ in range(40):
        n = rng.randint(10, 99)
        rows.append({"prompt": [{"role": "user", "content": f"Sum of the digits of {n}?"}], "n": n})
    return Dataset.from_list(rows).shuffle(seed=7)


def digit_sum(completions, n, **kwargs):
    return [float(str(sum(map(int, str(v)))) in c[0]["content"]) for c, v in zip(completions, n)]


def compact(completion_ids, **kwargs):
    return [1.0 - len(ids) / 24 for ids in completion_ids]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        num_generations=2,
        max_completion_length=24,
        max_steps=4,
        learning_rate=1e-3,
        beta=0.04,
        loss_type="grpo",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    hook = RegisterHook()
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[digit_sum, compact],
        train_dataset=make_dataset(),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
        callbacks=[hook],
    )
    hook.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
