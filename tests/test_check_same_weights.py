"""Scripts in the shape of public reports, beside the checkout: what the check says of them, which changes no weight."""

from pathlib import Path

import pytest

from rlvr_debug.checkout import ROOT

pytest.importorskip("trl", reason="trl is not installed: no trainer to check")
from benchmarks.check.forks import Forks
from rlvr_debug.files import read_json
from rlvr_debug.replay.answer import answer_text, status_of

pytestmark = pytest.mark.heavy

CASES = ROOT.parent / "shared" / "cases" / "trl"
TINY = ROOT / "models" / "tiny"
# the status and a part of what is said
RIGHT = {
    "samples_in_two_calls.py halves": (0, "Nothing was found"),
    "samples_in_two_calls.py before": (0, "4 rollouts were sampled and not trained on"),
    "loss_calls_twice.py check": (3, "a term is added to the loss"),
    "subclass_reads_its_reward_functions.py": (0, "Nothing was found"),
    "gmpo_with_a_fault.py": (3, "loss: not GRPO's as set: your `GMPOTrainer` overrides"),
    "rollout_function.py right": (0, "1 of 22 segments was not seen: sampling settings"),
    "rollout_function.py late": (3, "loss mask: "),
    "rollout_function.py all": (3, "loss mask: tool tokens are counted"),
    "rollout_function.py logprobs": (3, "sampler: "),
    "sgd_nesterov.py": (0, "Nothing was found"),
    "rate_times_rate.py": (0, "the rate in effect is 1e-06, 0.001 times the 0.001 that is set"),
    "generation_kwargs_hotter.py": (3, "rollouts are sampled at `temperature` 1.4"),
    "rounded_after_each_step.py": (3, "First after update 1"),
    "constant_ratio.py": (3, "the advantages have no gradient in this loss; only the KL term has"),
    "role_only_template.py": (0, "distinct prompts, and 1 as the policy reads them"),
}

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


@pytest.mark.parametrize("script", RIGHT)
def test_a_script_has_the_answer_that_is_right_and_trains_the_same_weights_in_each_step(
    forks: Forks, tmp_path: Path, script: str
) -> None:
    """As without the check, to the bit."""
    if not CASES.is_dir():
        pytest.skip(f"{CASES} is missing: no scripts to compare")
    name, *given = script.split()
    around = tmp_path / "around.py"
    around.write_text(AROUND, encoding="utf-8")
    variables = {"TINY_MODEL": str(TINY), "OUT": str(tmp_path / "out")}
    digests = []
    for kind, checked in (("plain", False), ("checked", True)):
        place = tmp_path / kind
        words = [str(around), str(place), str(CASES / name), *given]
        _, log = forks.run(words, tmp_path, 200, checked=checked, variables=variables)
        assert place.is_file(), f"{kind}: {log[-2000:]}"
        digests.append(place.read_text(encoding="utf-8").splitlines())
    plain, recorded = digests
    # the check ends the run once it has its steps
    assert len(recorded) == 3
    assert recorded == plain[:3]
    status, said = RIGHT[script]
    answer = read_json(tmp_path / "answer.json")
    assert said in answer_text(answer)
    assert status_of(answer) == status
