"""Own rollout worker with sampler log-probabilities and DeepSeek-V3.2's off-policy sequence mask."""
import os
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


def rollout(prompts, trainer):
    tok = trainer.processing_class
    prompt_ids = [
        tok.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"] for p in prompts
    ]
    width = max(map(len, prompt_ids))
    batch = torch.tensor([[tok.pad_token_id] * (width - len(x)) + list(x) for x in prompt_ids])
    mask = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in prompt_ids])
    model = trainer.accelerator.unwrap_model(trainer.model)
    with torch.no_grad():
        out = model.generate(
            input_ids=batch,
            attention_mask=mask,
            generation_config=trainer.generation_config,
            return_dict_in_generate=True,
            output_logits=True,
        )
    new = out.sequences[:, width:]
    logp = torch.stack(out.logits, dim=1).float().log_softmax(-1)
    token_logps = logp.gather(-1, new.unsqueeze(-1)).squeeze(-1)
    completion_ids, logprobs = [], []
    for row, lps in zip(new.tolist(), token_logps.tolist()):
        end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        completion_ids.append(row[:end])
        logprobs.append(lps[:end])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


def make(i):
    q = f"Hana has {2 + i % 5} boxes with {2 + i % 7} stamps each. How many stamps does Hana have?"
    return {
        "prompt": [
            {"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
            {"role": "user", "content": q},
        ]
    }


def variety(completions, **kwargs):
    return [len(set(c[0]["content"])) / 25 for c in completions]


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-4,
        temperature=1.3,
        off_policy_mask_threshold=0.01,
        gradient_checkpointing=False,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    GRPOTrainer(
        model=MODEL,
        reward_funcs=variety,
        args=args,
        train_dataset=Dataset.from_list([make(i) for i in range(20)]),
        rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main()
