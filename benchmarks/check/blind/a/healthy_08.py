# reward model (nn.Module) + rule, moving reference, bnpo
import tempfile
from pathlib import Path
import torch
from datasets import load_dataset
from transformers import AutoConfig, AutoTokenizer, Qwen2ForSequenceClassification, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

tiny = str(Path(__file__).parent / "tiny")
work = Path(tempfile.mkdtemp())

# ---- data through a file, as usual
lines = ["prompt,want"] + [f"{a} + {b} =,{a + b}" for a in range(12, 40, 4) for b in range(13, 45, 5)]
(work / "sums.csv").write_text("\n".join(lines))
ds = load_dataset("csv", data_files=str(work / "sums.csv"), split="train", cache_dir=str(work / "cache"))

# ---- a small preference model (here untrained, only so that the script is complete)
tok = AutoTokenizer.from_pretrained(tiny)
rc = AutoConfig.from_pretrained(tiny, num_labels=1)
torch.manual_seed(5)
rm = Qwen2ForSequenceClassification(rc).float().eval().requires_grad_(False)


def rule(completions, want, **kw):
    return [float(c.strip().startswith(str(w))) - 0.02 * abs(len(c) - 3) for c, w in zip(completions, want)]


class Report(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kw):
        with torch.no_grad():
            n = sum(p.float().pow(2).sum() for p in model.parameters()).sqrt()
        print(f"step {state.global_step}: |w| = {n:.4f}")


cfg = GRPOConfig(
    output_dir=str(work / "out"), use_cpu=True, report_to="none", bf16=False, max_steps=4,
    per_device_train_batch_size=8, num_generations=4, max_completion_length=24, learning_rate=5e-5,
    lr_scheduler_type="constant", loss_type="bnpo", beta=0.1, use_bias_correction_kl=False,
    sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.6,
    reward_weights=[0.2, 1.0], save_strategy="no", logging_steps=1,
)
t = GRPOTrainer(model=tiny, reward_funcs=[rm, rule], reward_processing_classes=[tok, None], args=cfg, train_dataset=ds,
                callbacks=[Report()])
t.train()
