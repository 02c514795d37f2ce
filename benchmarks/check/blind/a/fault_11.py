# custom rollout: we batch the prompts ourselves (later this will call our own inference service)
import os
import tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
tok = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def my_rollout(prompts, trainer):
    texts = [tok.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    batch = tok(texts, padding=True, return_tensors="pt")
    trainer.model.eval()
    with torch.inference_mode():
        gen = trainer.model.generate(
            **batch,
            do_sample=True,
            temperature=trainer.args.temperature,
            top_k=0,
            max_new_tokens=trainer.args.max_completion_length,
            return_dict_in_generate=True,
            output_logits=True,
        )
    trainer.model.train()
    start = batch["input_ids"].shape[1]
    logp = torch.stack(gen.logits, 1).float().div(trainer.args.temperature).log_softmax(-1)
    prompt_ids, completion_ids, logprobs = [], [], []
    for i in range(len(texts)):
        ids = gen.sequences[i, start:].tolist()
        if tok.eos_token_id in ids:
            ids = ids[: ids.index(tok.eos_token_id) + 1]
        prompt_ids.append(batch["input_ids"][i][batch["attention_mask"][i].bool()].tolist())
        completion_ids.append(ids)
        logprobs.append([logp[i, t, k].item() for t, k in enumerate(ids)])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}


sysmsg = {"role": "system", "content": "Solve the problem step by step. End with #### and the number."}
data = []
for a in (12, 15, 18, 22, 25, 29):
    for b, who in ((13, "Dev"), (24, "Margaret"), (31, "Jo"), (17, "Ada's brother")):
        q = f"{who} has {a} boxes with {b} apples each. How many apples does {who} have?"
        data.append({"prompt": [sysmsg, {"role": "user", "content": q}], "answer": a * b})


def reward(completions, answer, **kwargs):
    out = []
    for c, a in zip(completions, answer):
        t = c[0]["content"]
        out.append(float(str(a) in t) + 0.3 * ("The answer is" in t) + 0.2 * (str(a)[0] in t.split("is")[-1]))
    return out


args = GRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=4, learning_rate=1e-4,
                  per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
                  gradient_checkpointing=False, save_strategy="no", logging_steps=1)
GRPOTrainer(model, reward, args, Dataset.from_list(data), processing_class=tok, rollout_func=my_rollout).train()
