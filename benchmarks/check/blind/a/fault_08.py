# mu = 2 iterations on every batch; each update gets a note about how much memory its batch takes
import os, tempfile
import datasets
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LeanGRPOTrainer(GRPOTrainer):
    KEEP = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch", "ref_per_token_logps"}

    def _compute_loss(self, model, inputs):
        # pass on only the tensors that the forward needs, the rest can be freed
        lean = {k: v for k, v in inputs.items() if k in self.KEEP}
        mb = sum(v.numel() * v.element_size() for v in lean.values()) / 2**20
        self._metrics["train"]["batch_mb"].append(mb)
        return super()._compute_loss(model, lean)


rows = []
for a in range(13, 25):
    for b in (14, 19, 25):
        rows.append({
            "prompt": [
                {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
                {"role": "user", "content": f"Hana has {a} boxes with {b} eggs each. How many eggs does Hana have?"},
            ],
            "y": str(a * b),
        })


def reward(prompts, completions, y, **kwargs):
    texts = [c[0]["content"] for c in completions]
    return [1.0 * (g in t) + 0.5 * ("eggs" in t) - 0.01 * len(t) for t, g in zip(texts, y)]


cfg = GRPOConfig(
    output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False,
    num_iterations=2, epsilon=0.1, epsilon_high=0.2, learning_rate=3e-4, lr_scheduler_type="constant",
    max_steps=4, per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
    loss_type="bnpo", logging_steps=1, save_strategy="no",
)
LeanGRPOTrainer(model=MODEL, args=cfg, reward_funcs=reward, train_dataset=datasets.Dataset.from_list(rows)).train()
