import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def rows():
    for i in range(24):
        who, thing = ["Eve", "Gus", "Ada"][i % 3], ["stamps", "cards"][i % 2]
        yield {
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"{who} has {3 + i % 5} boxes with {2 + i % 8} {thing} each. How many {thing} does {who} have?"},
            ]
        }


def consonants(completions, **kwargs):
    return [sum(ch in "bcdfghklmnprst" for ch in c[0]["content"]) / max(1, len(c[0]["content"])) for c in completions]


class HostCopyTrainer(GRPOTrainer):
    """Checkpoints are written from a host copy, so that a slow disk never holds the accelerator's tensors."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._host = {}

    def training_step(self, model, inputs, num_items_in_batch=None):
        source = self.accelerator.unwrap_model(model)
        for name, tensor in source.state_dict().items():
            if name in self._host:
                self._host[name].copy_(tensor)
            else:
                self._host[name] = tensor.detach().to("cpu", copy=True)
        return super().training_step(model, inputs, num_items_in_batch)

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict=dict(self._host) if state_dict is None else state_dict)


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=3e-4,
        max_steps=3,
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=3,
        save_only_model=True,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = HostCopyTrainer(
        model=MODEL,
        reward_funcs=consonants,
        args=args,
        train_dataset=Dataset.from_list(list(rows())),
    )
    trainer.train()
    trainer.save_model(os.path.join(args.output_dir, "final"))


if __name__ == "__main__":
    main()
