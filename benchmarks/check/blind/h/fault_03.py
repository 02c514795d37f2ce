import os, tempfile
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

here = os.path.dirname(os.path.abspath(__file__))
tok = AutoTokenizer.from_pretrained(os.path.join(here, "tiny"), padding_side="left")
net = AutoModelForCausalLM.from_pretrained(os.path.join(here, "tiny"), dtype="float32")


class CleanTextTrainer(GRPOTrainer):
    """Post-processes what the model wrote (strips markup and outer blanks) before it is scored and trained on."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        texts = self.processing_class.batch_decode(ids, skip_special_tokens=True)
        texts = [t.strip() for t in texts]
        cleaned = self.processing_class(text=texts, add_special_tokens=False)["input_ids"]
        return [c if c else [self.processing_class.eos_token_id] for c in cleaned], logprobs


rows = [[{"role": "user", "content": f"Tell me {a} minus {b}."}] for a in range(11, 17) for b in range(1, 6)]
data = Dataset.from_dict({"prompt": rows})


def letters(completions, **kw):
    return [min(c[0]["content"].count("o"), 6) - 0.02 * len(c[0]["content"]) for c in completions]


cfg = GRPOConfig(tempfile.mkdtemp(), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=4,
                 per_device_train_batch_size=8, num_generations=8, max_completion_length=24, learning_rate=3e-4,
                 logging_steps=1, loss_type="grpo")
t = CleanTextTrainer(net, letters, cfg, data, processing_class=tok)
t.train()
