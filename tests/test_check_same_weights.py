"""A script that is checked trains the same weights as without the check, to the bit, after each of its steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT
from tests.shared import ran

pytestmark = pytest.mark.heavy

CASES = ROOT.parent / "shared" / "cases" / "trl"
TINY = ROOT / "models" / "tiny"
SCRIPTS = (
    *("constant_ratio", "generation_kwargs_hotter", "gmpo_with_a_fault", "rate_times_rate"),
    *("role_only_template", "rounded_after_each_step", "sgd_nesterov"),
    *("loss_calls_twice check", "rollout_function right", "rollout_function all"),
    *("samples_in_two_calls before", "samples_in_two_calls halves"),
    "subclass_reads_its_reward_functions",
)

# a script around theirs, which writes the weights' digest after each step
AROUND = """
import hashlib, runpy, sys
from pathlib import Path
import trl
from transformers import TrainerCallback


class Digests(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **_):
        digest = hashlib.sha256()
        for name, tensor in sorted(model.named_parameters()):
            digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
        with Path(digests).open("a") as file:
            file.write(f"{state.global_step} {digest.hexdigest()}\\n")


digests, script = sys.argv[1:3]
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(script).parent))
make = trl.GRPOTrainer.__init__


def init(trainer, *given, **named):
    make(trainer, *given, **named)
    trainer.add_callback(Digests())


trl.GRPOTrainer.__init__ = init
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_checked_script_trains_the_same_weights_in_each_step(tmp_path: Path, script: str) -> None:
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is missing: no scripts to compare")
    name, *given = script.split()
    (tmp_path / "around.py").write_text(AROUND, encoding="utf-8")
    variables = {"TINY_MODEL": str(TINY), "OUT": str(tmp_path / "out"), "OMP_NUM_THREADS": "1"}
    digests = []
    for kind, words in (("plain", ()), ("checked", ("-m", "rlvr_debug.cli", "check"))):
        place = tmp_path / kind
        command = [*words, "around.py", str(place), str(CASES / f"{name}.py"), *given]
        done = ran([sys.executable, *command], cwd=tmp_path, env={**os.environ, **variables})
        assert place.is_file(), f"{kind}: {done.stderr[-2000:]}"
        digests.append(place.read_text(encoding="utf-8").splitlines())
    plain, checked = digests
    # the check ends the run once it has its steps
    assert len(checked) == 3
    assert checked == plain[:3]
