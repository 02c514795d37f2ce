import os, tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class LoggingTrainer(GRPOTrainer):
    """Adds the length of the text proper, without the end-of-turn token, to the logs."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        text_tokens = inputs["completion_mask"]
        text_tokens *= (inputs["completion_ids"] != self._tokenizer.eos_token_id).long()
        self._metrics["train"]["completions/text_length"].append(text_tokens.sum(1).float().mean().item())
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


def short_and_numeric(completions, **kwargs):
    out = []
    for c in completions:
        s = c[0]["content"]
        out.append(sum(x.isdigit() for x in s) / (len(s) + 1) - 0.01 * len(s))
    return out


cfg = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=2,
    max_completion_length=32, max_steps=4, learning_rate=2e-4, logging_steps=1,
    loss_type="bnpo", use_cpu=True, bf16=False, report_to=[], save_strategy="no",
)
data = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"How much is {i} + 10?"}] for i in range(24)]})
LoggingTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    args=cfg, reward_funcs=short_and_numeric, train_dataset=data,
).train()
