import argparse, pathlib, re, tempfile
import datasets
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

# GSPO: sequence-level ratios, the paper's narrow clip range, each batch is used for two passes of two updates.

def make_rows(n):
    names = ["Eve", "Finn", "Gus", "Hana"]
    for i in range(n):
        a, b = 12 + (i * 5) % 17, 3 + (i * 7) % 13
        yield {"question": f"{names[i % 4]} has {a} boxes with {b} toys each. How many toys does {names[i % 4]} have?", "answer": str(a * b)}

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=str(pathlib.Path(__file__).resolve().parent / "tiny"))
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--steps", type=int, default=4)
    a = p.parse_args()

    tok = AutoTokenizer.from_pretrained(a.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)

    ds = datasets.Dataset.from_list(list(make_rows(40)))
    # a plain-text prompt: the template is applied here, so the trainer sees strings
    ds = ds.map(lambda r: {"prompt": tok.apply_chat_template(
        [{"role": "system", "content": "Solve the problem step by step. End with #### and the number."},
         {"role": "user", "content": r["question"]}], tokenize=False, add_generation_prompt=True)},
        remove_columns=["question"])

    num = re.compile(r"\d+")
    def digit_overlap(prompts, completions, answer, completion_ids, **kw):
        r = []
        for c, ids, g in zip(completions, completion_ids, answer):
            found = num.findall(c)
            last = found[-1] if found else ""
            r.append(sum(x == y for x, y in zip(last, g)) / len(g) - 0.01 * len(ids))
        return r

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False,
        max_steps=a.steps, learning_rate=a.lr, per_device_train_batch_size=8, num_generations=4,
        steps_per_generation=2, num_iterations=2, max_completion_length=24,
        importance_sampling_level="sequence", loss_type="grpo", epsilon=3e-4, epsilon_high=4e-4,
        scale_rewards="batch", gradient_checkpointing=False, lr_scheduler_type="constant", save_strategy="no",
    )
    GRPOTrainer(model=model, processing_class=tok, reward_funcs=digit_overlap, args=args, train_dataset=ds).train()

if __name__ == "__main__":
    main()
