"""GSPO, off-policy: four minibatches per rollout, used twice, with a reference that follows the policy."""
import os
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def variety(completions, **kwargs):
    return [len(set(t)) / 8 for t in completions]


def soft_overlong(completion_ids, **kwargs):
    """DAPO's soft punishment: none up to 12 tokens, then linear."""
    return [-max(len(ids) - 12, 0) / 8 for ids in completion_ids]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    num_iterations=2,
    num_generations=4,
    max_completion_length=20,
    mask_truncated_completions=True,
    importance_sampling_level="sequence",
    loss_type="grpo",
    epsilon=3e-2,
    epsilon_high=4e-2,
    beta=0.01,
    sync_ref_model=True,
    ref_model_sync_steps=2,
    ref_model_mixup_alpha=0.3,
    temperature=0.9,
    top_entropy_quantile=0.8,
    learning_rate=1e-4,
    lr_scheduler_type="cosine",
    max_steps=5,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32", attn_implementation="eager")
trainer = GRPOTrainer(
    model=model,
    reward_funcs=[variety, soft_overlong],
    args=args,
    train_dataset=Dataset.from_dict({"prompt": [f"x={a}; y={b}; x*y=" for a in range(2, 10) for b in range(2, 10)]}),
    processing_class=AutoTokenizer.from_pretrained(MODEL, padding_side="left"),
)
trainer.train()
