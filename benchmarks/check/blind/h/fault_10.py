import gc, os, tempfile
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

p = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
model = AutoModelForCausalLM.from_pretrained(p, dtype="float32")

def r(completions, **kw):
    return [len([ch for ch in c if ch.isdigit()]) * 0.1 for c in completions]

t = GRPOTrainer(
    model=model,
    reward_funcs=r,
    train_dataset=Dataset.from_dict({"prompt": [f"{x}-{y}=" for x in range(10, 16) for y in range(4)]}),
    args=GRPOConfig(tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", beta=0.2,
                    learning_rate=1e-3, max_steps=6, per_device_train_batch_size=8, num_generations=8,
                    max_completion_length=16, logging_steps=1, gradient_checkpointing=False),
)

# two copies of the weights do not fit on my machine
t.ref_model = t.model
gc.collect()

t.train()
