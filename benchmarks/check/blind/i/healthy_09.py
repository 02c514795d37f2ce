import os
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def numerals(completions, **kwargs):
    return [sum(map(str.isnumeric, c)) / (len(c) + 4) - 0.01 * len(c) for c in completions]


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    # GSPO with a moving reference
    importance_sampling_level="sequence",
    loss_type="grpo",
    epsilon=3e-3,
    epsilon_high=4e-3,
    delta=1.5,
    beta=0.01,
    use_bias_correction_kl=False,
    sync_ref_model=True,
    ref_model_sync_steps=2,
    ref_model_mixup_alpha=0.5,
    scale_rewards=False,
    # generation
    num_generations=4,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    num_iterations=2,
    max_completion_length=24,
    temperature=0.8,
    pad_to_multiple_of=8,
    shuffle_dataset=False,
    cast_lm_head_to_fp32=True,
    # optimisation
    learning_rate=2e-5,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=1,
    optim="adamw_torch",
    adam_beta2=0.95,
    max_grad_norm=0.3,
    max_steps=8,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    bf16=False,
)
trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=[numerals],
    args=config,
    train_dataset=Dataset.from_dict({"prompt": [f"{x} + {x + 1} =" for x in range(0, 64, 2)]}),
)
trainer.train()
