import os, tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
    # soft gate
    loss_type="sapo", sapo_temperature_pos=1.0, sapo_temperature_neg=1.1,
    num_iterations=2,
    # only the forking tokens, plus an entropy bonus that adapts itself
    top_entropy_quantile=0.5,
    use_adaptive_entropy=True, entropy_coef=0.005, entropy_target=2.5, entropy_coef_delta=0.002,
    # drop what has drifted too far
    off_policy_mask_threshold=0.3,
    temperature=1.2,
    mask_truncated_completions=False,
    cast_lm_head_to_fp32=True,
    optim="adafactor",
    lr_scheduler_type="inverse_sqrt", warmup_steps=2,
    learning_rate=5e-4, max_grad_norm=0.5,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=20, max_steps=6,
)


def balance(completions, **kwargs):
    out = []
    for (message,) in completions:
        text = message["content"]
        d = sum(ch.isdigit() for ch in text)
        out.append(d / (1 + len(text)) + len(set(text)) / 20)
    return out


rows = [[{"role": "system", "content": "Short answers."}, {"role": "user", "content": f"Is {n} even?"}] for n in range(28)]
GRPOTrainer(tiny, balance, args=args, train_dataset=Dataset.from_dict({"prompt": rows})).train()
