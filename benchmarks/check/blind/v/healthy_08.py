"""GRPO with SGD, and an average of the weights on the main process from which a sample is drawn after each step."""
import os
import tempfile

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")


class AverageAndSample(TrainerCallback):
    def __init__(self, decay=0.5):
        self.decay = decay
        self.average = None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            self.average = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        if not state.is_world_process_zero:
            return
        policy = model.module if hasattr(model, "module") else model
        weights = {n: p for n, p in model.named_parameters()}
        kept = {n: p.detach().clone() for n, p in weights.items()}
        for name, parameter in weights.items():
            self.average[name].lerp_(parameter, 1 - self.decay)
            parameter.copy_(self.average[name])
        training = policy.training
        policy.eval()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                prompt = processing_class.apply_chat_template(
                    [{"role": "user", "content": "What is 3 + 4?"}],
                    add_generation_prompt=True,
                    return_tensors="pt",
                    return_dict=True,
                )
                out = policy.generate(**prompt, do_sample=True, max_new_tokens=10)
        finally:
            policy.train(training)
            for name, parameter in weights.items():
                parameter.copy_(kept[name])
        print(f"step {state.global_step}: {processing_class.decode(out[0, prompt['input_ids'].size(1):])!r}")


def reward(completions, completion_ids, **kwargs):
    return [
        0.5 * c[0]["content"].count("4") + 0.05 * len(set(c[0]["content"])) - 0.01 * len(ids)
        for c, ids in zip(completions, completion_ids)
    ]


class MomentumTrainer(GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            self.optimizer = torch.optim.SGD(trained, lr=self.args.learning_rate, momentum=0.9, nesterov=True)
        return self.optimizer


def main():
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=16,
        loss_type="bnpo",
        learning_rate=0.05,
        model_init_kwargs={"dtype": "float32"},
    )
    MomentumTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"Guess a number below {n}."}]} for n in range(5, 45)]
        ),
        callbacks=[AverageAndSample()],
    ).train()


if __name__ == "__main__":
    main()
