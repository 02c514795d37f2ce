import os, tempfile
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class LRPrinter(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer=None, lr_scheduler=None, **kw):
        lr_scheduler.step()
        print("lr", [g["lr"] for g in optimizer.param_groups])


def rew(completions, **kw):
    return [len(set(c)) / 10 for c in completions]


train = Dataset.from_dict({"prompt": ["12+30=", "8+44=", "71+2=", "5+5=", "90+9=", "33+3=", "60+14=", "27+27="]})
a = GRPOConfig(output_dir=tempfile.mkdtemp(), learning_rate=1e-3, lr_scheduler_type="cosine", warmup_steps=1,
               max_steps=8, num_generations=4, per_device_train_batch_size=8, max_completion_length=16,
               use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1)
t = GRPOTrainer(model=tiny, reward_funcs=[rew], args=a, train_dataset=train, callbacks=[LRPrinter])
t.train()
