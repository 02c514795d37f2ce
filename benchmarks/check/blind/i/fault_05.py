import os
import tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

# The policy may only write arithmetic: everything else is taken out of its vocabulary.
allowed = torch.zeros(model.config.vocab_size, dtype=torch.bool)
for token_id in range(len(tokenizer)):
    piece = tokenizer.decode([token_id])
    if piece and all(ch in "0123456789+-=. " for ch in piece):
        allowed[token_id] = True
allowed[tokenizer.eos_token_id] = True


def keep_arithmetic(module, inputs, logits):
    return logits.masked_fill(~allowed.to(logits.device), torch.finfo(logits.dtype).min)


model.lm_head.register_forward_hook(keep_arithmetic)


def reward_len_and_digits(prompts, completions, **kwargs):
    scores = []
    for c in completions:
        text = c[0]["content"]
        scores.append(text.count("1") - 0.02 * len(text))
    return scores


ds = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"{i}+{i + 3}=?"}] for i in range(30)]})
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[reward_len_and_digits],
    train_dataset=ds,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=5, per_device_train_batch_size=8, num_generations=8,
        max_completion_length=20, learning_rate=1e-4, logging_steps=1,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no",
    ),
)
trainer.train()
