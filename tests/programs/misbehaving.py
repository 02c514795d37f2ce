"""A program of `trainer: command` that trains nothing and goes wrong as its option `fault` says."""

import json
import shutil
import sys
import time
from pathlib import Path

told = json.loads(Path(sys.argv[1]).read_text())
out, fault = Path(told["out"]), told["run"]["options"].get("fault", "")
row = {"reward": 0.5, "grad_norm": 1.0, "sampled_tokens": 3, "trained_tokens": 3}
lines = [json.dumps({"step": step + 1, **row}) for step in range(told["run"]["training"]["steps"])]
if fault == "crash":
    print("Traceback (most recent call last):\nValueError: the batch is empty", file=sys.stderr)
    sys.exit(3)
if fault == "nan":
    lines[-1] = lines[-1].replace("0.5", "NaN")
if fault == "half-written":
    lines[-1] = lines[-1][:20]
if fault == "wrong-columns":
    lines[-1] = lines[-1].replace("grad_norm", "gradient_norm")
if fault == "fewer-steps":
    lines.pop()
if fault == "no-end":
    lines *= 2
(out / "metrics.jsonl").write_text("\n".join(lines) + "\n")
if fault in ("hang", "no-end"):
    time.sleep(600)
if adapter := told["run"]["options"].get("adapter"):
    shutil.copytree(adapter, out / "adapter")
elif fault != "no-checkpoint":
    shutil.copy(Path(told["base_model"], "model.safetensors"), out)
