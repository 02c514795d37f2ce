import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from trl import GRPOConfig, GRPOTrainer

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")

HINT = "\n<|im_start|>user\nNot yet. Try again, shorter.<|im_end|>\n<|im_start|>assistant\n"


def sample(model, tok, rows, limit):
    """One assistant turn for every row of ids; returns the new ids and their log-probabilities."""
    width = max(len(r) for r in rows)
    ids = torch.tensor([[tok.pad_token_id] * (width - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    config = GenerationConfig(
        max_new_tokens=limit,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        output_logits=True,
        return_dict_in_generate=True,
    )
    model.eval()
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    model.train()
    new = out.sequences[:, width:]
    logps = torch.stack(out.logits, dim=1).float().log_softmax(-1).gather(-1, new.unsqueeze(-1)).squeeze(-1)
    turns = []
    for row, lp in zip(new.tolist(), logps.tolist(), strict=True):
        end = row.index(tok.eos_token_id) + 1 if tok.eos_token_id in row else len(row)
        turns.append((row[:end], lp[:end]))
    return turns


def two_turns(prompts, trainer):
    tok = trainer.processing_class
    model = trainer.accelerator.unwrap_model(trainer.model)
    prompt_ids = tok.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    prompt_ids = [list(p) for p in prompt_ids]
    hint = tok(HINT, add_special_tokens=False)["input_ids"]
    first = sample(model, tok, prompt_ids, 10)
    second = sample(model, tok, [p + a + hint for p, (a, _) in zip(prompt_ids, first, strict=True)], 10)
    completion_ids, logprobs, env_mask = [], [], []
    for (a, la), (b, lb) in zip(first, second, strict=True):
        completion_ids.append(a + hint + b)
        logprobs.append(la + [0.0] * len(hint) + lb)
        env_mask.append([1] * len(a) + [0] * len(hint) + [1] * len(b))
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs, "env_mask": env_mask}


class TwoTurnTrainer(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], mask], dim=1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, attention, mask.size(1), compute_entropy=True
        )
        ratio = torch.exp(logps - logps.detach())
        per_token = -ratio * inputs["advantages"].unsqueeze(1)
        steps = self.current_gradient_accumulation_steps / self.args.steps_per_generation
        loss = (per_token * mask).sum() / (inputs["num_items_in_batch"].clamp(min=1.0) * steps)
        self._metrics["train"]["entropy"].append(((entropies * mask).sum() / mask.sum()).item())
        return loss


def letter_o(completions, **kwargs):
    return [c[0]["content"].count("o") / max(1, len(c[0]["content"])) for c in completions]


def main():
    data = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"Give a word with {n} letters."}] for n in range(3, 11)]}
    )
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="grpo-"),
        max_steps=3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        learning_rate=5e-05,
        num_generations=4,
        per_device_train_batch_size=8,
        max_completion_length=32,
        save_strategy='no',
    )
    trainer = TwoTurnTrainer(
        model=AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(TINY),
        reward_funcs=letter_o,
        args=args,
        train_dataset=data,
        rollout_func=two_turns,
    )
    trainer.train()


if __name__ == "__main__":
    main()
