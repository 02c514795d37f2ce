"""GRPO with a rollout function that samples with the policy's own generate."""
import os
import random
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
SYSTEM = "Solve the problem step by step. End with #### and the number."
tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")


def rollout(prompts, trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    texts = [tokenizer.apply_chat_template(p, add_generation_prompt=True, tokenize=False) for p in prompts]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            **batch,
            do_sample=True,
            temperature=trainer.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=trainer.max_completion_length,
            eos_token_id=trainer.eos_token_ids,
            pad_token_id=tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_scores=True,
        )
    model.train(was_training)
    width = batch["input_ids"].shape[1]
    sampled = out.sequences[:, width:]
    logps = torch.stack(out.scores, dim=1).log_softmax(-1).gather(2, sampled.unsqueeze(-1)).squeeze(-1)

    prompt_ids, completion_ids, logprobs, answers = [], [], [], []
    for i in range(len(prompts)):
        prompt_ids.append(batch["input_ids"][i][batch["attention_mask"][i].bool()].tolist())
        text = tokenizer.decode(sampled[i], skip_special_tokens=True).strip()
        ids = tokenizer(text or " ", add_special_tokens=False)["input_ids"]
        completion_ids.append(ids)
        logprobs.append(logps[i, : len(ids)].tolist())
        answers.append(text)
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "text": answers}


def correct(completions, text, answer, **kwargs):
    return [float(t.endswith(a)) + 0.2 * t.count(">>") for t, a in zip(text, answer)]


def brevity(completions, text, **kwargs):
    return [-len(t) / 60 for t in text]


if __name__ == "__main__":
    rng = random.Random(5)
    rows = []
    for _ in range(32):
        a, b = rng.randint(2, 12), rng.randint(3, 9)
        question = f"Cleo has {a} boxes with {b} stamps each. How many stamps does Cleo have?"
        rows.append(
            {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": str(a * b),
            }
        )
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[correct, brevity],
        rollout_func=rollout,
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=4,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=32,
            learning_rate=1e-5,
            loss_type="grpo",
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            report_to="none",
        ),
    )
    trainer.train()
