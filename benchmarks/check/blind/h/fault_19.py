import copy, os, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


class Actor:
    """A second copy of the policy that only samples, as an inference server would."""

    def __init__(self, learner, tokenizer):
        self.net = copy.deepcopy(learner).eval()
        self.tok = tokenizer

    def load(self, state_dict):
        self.net.load_state_dict(state_dict)

    @torch.no_grad()
    def sample(self, prompts, max_new_tokens, temperature):
        enc = self.tok(prompts, return_tensors="pt", padding=True)
        out = self.net.generate(**enc, do_sample=True, max_new_tokens=max_new_tokens, temperature=temperature,
                                top_k=0, top_p=1.0, return_dict_in_generate=True, output_scores=True)
        lp = self.net.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        tails = out.sequences[:, enc["input_ids"].shape[1]:].tolist()
        result = []
        for ids, l in zip(tails, lp.tolist()):
            n = ids.index(self.tok.eos_token_id) + 1 if self.tok.eos_token_id in ids else len(ids)
            result.append((ids[:n], l[:n]))
        return result


root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tokenizer = AutoTokenizer.from_pretrained(root, padding_side="left")
learner = AutoModelForCausalLM.from_pretrained(root, dtype=torch.float32)
actor = Actor(learner, tokenizer)


def rollout(prompts, trainer):
    samples = actor.sample(prompts, trainer.max_completion_length, trainer.temperature)
    actor.load(trainer.accelerator.unwrap_model(trainer.model).state_dict())
    return {
        "prompt_ids": tokenizer(prompts)["input_ids"],
        "completion_ids": [ids for ids, _ in samples],
        "logprobs": [lp for _, lp in samples],
    }


def reward(completions, **kwargs):
    return [sum(ch in "02468" for ch in c) / 16 for c in completions]


GRPOTrainer(
    learner, reward, processing_class=tokenizer, rollout_func=rollout,
    train_dataset=Dataset.from_dict({"prompt": [f"{i} + {j} = " for i in range(6) for j in range(4)]}),
    args=GRPOConfig(tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=5,
                    per_device_train_batch_size=8, num_generations=4, max_completion_length=16, logging_steps=1,
                    learning_rate=1e-3),
).train()
