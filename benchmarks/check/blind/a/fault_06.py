"""
Llama-style setup: the tokenizer has no use for a separate pad token, so pad = eos.
pad_to_multiple_of gives fixed shapes; the mask is rebuilt from the ids so that it fits them.
"""
import tempfile, os
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

P = os.path.dirname(os.path.abspath(__file__)) + "/tiny"

tok = AutoTokenizer.from_pretrained(P)
tok.pad_token = tok.eos_token


class FixedShapeGRPO(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        ids = out["completion_ids"]
        out["completion_mask"] = (ids != self._tokenizer.pad_token_id).long()
        return out


NAMES, ITEMS = ["Finn", "Gus", "Ada"], ["stamps", "toys", "books", "pens"]
qs = []
for i in range(36):
    w, t, a, b = NAMES[i % 3], ITEMS[i % 4], 11 + i % 18, 30 - i % 17
    qs.append(dict(prompt=[dict(role="system", content="Solve the problem step by step. End with #### and the number."),
                           dict(role="user", content=f"{w} has {a} boxes with {b} {t} each. How many {t} does {w} have?")],
                   thing=t, product=a * b))


def rew_thing(completions, thing, **_):
    return [float(t in c[0]["content"]) for c, t in zip(completions, thing)]


def rew_product(completions, product, **_):
    return [float(str(p) in c[0]["content"]) + 0.3 * float(str(p)[0] + "" in c[0]["content"].split(">>")[-1][:1]) for c, p in zip(completions, product)]


tr = FixedShapeGRPO(P, [rew_thing, rew_product],
                    GRPOConfig(tempfile.mkdtemp(), use_cpu=True, report_to="none", bf16=False, max_steps=3, learning_rate=1e-4,
                               per_device_train_batch_size=8, num_generations=4, max_completion_length=24, pad_to_multiple_of=8,
                               loss_type="grpo", save_strategy="no", logging_steps=1),
                    Dataset.from_list(qs), processing_class=tok)
tr.train()
