"""A script that is checked trains the same weights as without the check, to the bit, after each of its steps."""

from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")
from benchmarks.check.forks import Forks

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
def test_a_checked_script_trains_the_same_weights_in_each_step(
    forks: Forks, tmp_path: Path, script: str
) -> None:
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is missing: no scripts to compare")
    name, *given = script.split()
    around = tmp_path / "around.py"
    around.write_text(AROUND, encoding="utf-8")
    variables = {"TINY_MODEL": str(TINY), "OUT": str(tmp_path / "out")}
    digests = []
    for kind, checked in (("plain", False), ("checked", True)):
        place = tmp_path / kind
        words = [str(around), str(place), str(CASES / f"{name}.py"), *given]
        _, said = forks.run(words, tmp_path, 200, checked=checked, variables=variables)
        assert place.is_file(), f"{kind}: {said[-2000:]}"
        digests.append(place.read_text(encoding="utf-8").splitlines())
    plain, recorded = digests
    # the check ends the run once it has its steps
    assert len(recorded) == 3
    assert recorded == plain[:3]
