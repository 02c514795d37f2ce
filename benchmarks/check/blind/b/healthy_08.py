"""GSPO (sequence ratio), two passes over each generation, and a reference that follows slowly (TR-DPO style)."""
import pathlib, tempfile
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

settings = {
    "policy": dict(importance_sampling_level="sequence", loss_type="grpo", epsilon=3e-2, epsilon_high=4e-2, num_iterations=2),
    "leash": dict(beta=0.04, sync_ref_model=True, ref_model_mixup_alpha=0.6, ref_model_sync_steps=2),
    "batch": dict(per_device_train_batch_size=8, num_generations=4, gradient_accumulation_steps=1, steps_per_generation=2),
    "text": dict(max_completion_length=24, temperature=1.0),
    "run": dict(max_steps=4, learning_rate=5e-5, lr_scheduler_type="constant", use_cpu=True, bf16=False,
                report_to="none", save_strategy="no", logging_steps=1),
}

def first_word_short(prompts, completions, **_):
    r = []
    for c in completions:
        w = c.split()
        r.append((1 / (1 + len(w[0])) if w else 0.0) + 0.01 * min(len(c), 10))
    return r

with tempfile.TemporaryDirectory() as out:
    flat = {k: v for part in settings.values() for k, v in part.items()}
    trainer = GRPOTrainer(
        model=str(pathlib.Path(__file__).resolve().parent / "tiny"),
        args=GRPOConfig(output_dir=out, **flat),
        reward_funcs=first_word_short,
        train_dataset=Dataset.from_dict({"prompt": [f"{n} + {n} =" for n in range(1, 49)]}),
    )
    trainer.train()
