import gc, os, tempfile, time
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class KeepMemoryLow(TrainerCallback):
    def __init__(self):
        self.freed = 0

    def _clean(self, model):
        model.zero_grad(set_to_none=True)
        self.freed += gc.collect()

    def on_substep_end(self, args, state, control, model=None, **kwargs):
        self._clean(model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self._clean(model)


class StepTimer(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        self.t = time.time()

    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step}: {time.time() - self.t:.2f} s")


def target_len(completions, **kwargs):
    return [-abs(len(c[0]["content"]) - 30) / 30 for c in completions]


chat = [[{"role": "user", "content": f"How many apples are {i} and {j}?"}] for i in range(1, 7) for j in range(1, 7)]
trainer = GRPOTrainer(
    model=os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny"),
    reward_funcs=target_len,
    args=GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=4, num_generations=4,
        max_completion_length=24, max_steps=4, learning_rate=1e-4, optim="adamw_torch", use_cpu=True, bf16=False,
        report_to=[], logging_steps=1, save_strategy="no",
    ),
    train_dataset=Dataset.from_dict({"prompt": chat}),
    callbacks=[KeepMemoryLow(), StepTimer()],
)
trainer.train()
