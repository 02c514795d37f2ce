"""GRPO with two passes over each batch; the old policy's log-probabilities are shared so that ranks stay in step."""
import os
import tempfile

from accelerate.utils import broadcast, pad_across_processes
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class SharedOldPolicyTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        # CPUs of different kinds round differently: take the main process's numbers for the old policy
        old = batch["old_per_token_logps"]
        width = old.size(1)
        old = pad_across_processes(old, dim=1, pad_index=0.0).contiguous()
        batch["old_per_token_logps"] = broadcast(old, from_process=0)[:, :width]
        return batch


def exact(completions, answer, **kwargs):
    return [2.0 * (truth in c[0]["content"]) for c, truth in zip(completions, answer)]


def shape(completions, completion_ids, **kwargs):
    return [0.1 * len(set(c[0]["content"])) - 0.04 * len(i) for c, i in zip(completions, completion_ids)]


def main():
    rows = []
    for a in range(1, 7):
        for b in range(1, 7):
            rows.append({"prompt": [{"role": "user", "content": f"Add {a} and {b}."}], "answer": str(a + b)})
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        num_generations=4,
        num_iterations=2,
        max_completion_length=16,
        learning_rate=1e-3,
        model_init_kwargs={"dtype": "float32"},
    )
    SharedOldPolicyTrainer(
        model=MODEL, reward_funcs=[exact, shape], args=args, train_dataset=Dataset.from_list(rows)
    ).train()


if __name__ == "__main__":
    main()
