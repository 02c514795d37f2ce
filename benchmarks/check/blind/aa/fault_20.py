import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class HostSaveTrainer(GRPOTrainer):
    """Saves from a host copy of the weights in the dtype that the inference server loads."""

    export_dtype = torch.float32

    def __init__(self, *args, **kwargs):
        self._host_state = None
        super().__init__(*args, **kwargs)

    def _host_copy(self):
        if self._host_state is None:
            model = self.accelerator.unwrap_model(self.model)
            self._host_state = {
                name: tensor.detach().to("cpu", self.export_dtype, copy=True)
                for name, tensor in model.state_dict().items()
            }
        return self._host_state

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict=self._host_copy())


def dataset():
    rows = []
    for i in range(48):
        a, b = 2 + (5 * i) % 6, 2 + (3 * i) % 8
        thing = ("coins", "cards", "eggs", "shells")[i % 4]
        rows.append({"prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": f"Hana has {a} boxes with {b} {thing} each. How many {thing} does Hana have?"},
        ]})
    return Dataset.from_list(rows)


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in c[0]["content"]) / (1 + len(c[0]["content"])) for c in completions]


def closes(completion_ids, **kwargs):
    return [0.3 if ids[-1] == 258 else 0.0 for ids in completion_ids]


def main():
    folder = tempfile.mkdtemp()
    args = GRPOConfig(
        output_dir=folder,
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=24,
        learning_rate=5e-4,
        loss_type="dapo",
        save_strategy="steps",
        save_steps=1,
        save_only_model=True,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
    )
    trainer = HostSaveTrainer(MODEL, [digits, closes], args, train_dataset=dataset())
    trainer.train()
    print(sorted(os.listdir(folder)))


if __name__ == "__main__":
    main()
