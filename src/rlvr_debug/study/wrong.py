"""What an arm may not be: one of settings that mean nothing together, or of a larger budget; and the error that says so."""

from typing import Any

from rlvr_debug.errors import typed
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.trainers import Run


class Wrong(Exception):
    """What is wrong with a key. checks.check_references names the file."""

    @classmethod
    def value(cls, key: str, found: Any, expected: Any, arm: Run | None = None) -> "Wrong":
        """Of a key that has a value which means nothing. arm: the one that has it, where only one may."""
        place = f" in arm '{arm.arm}'" if arm else ""
        return cls(f"key '{key}' is {found}{place}, expected {expected}")


def check_budget(arm: Run, case: Run) -> None:
    """Raise Wrong where the arm would win because it samples or trains more than the case."""
    for name, value, allowed in (
        ("steps", arm.training.steps, case.training.steps),
        ("rollouts per step", arm.rollouts_per_step, case.rollouts_per_step),
        ("num_iterations", arm.training.num_iterations, case.training.num_iterations),
    ):
        if arm.hypothesis and value > allowed:
            raise Wrong(
                f"arm '{arm.arm}' of {arm.hypothesis} has {value} {name}, expected at most "
                f"the case's {allowed}: an arm with a larger budget shows nothing"
            )


# the KL comes off the sum of the parts, and the loss has no term of it that a ratio could weight
_FOR_KL_IN_REWARD = {
    "multi_objective_aggregation": "sum_then_normalize",
    "use_bias_correction_kl": False,
}


def check_training(arm: Run, processes: int) -> None:
    """Raise Wrong where settings of the arm mean nothing together."""
    training, batch = arm.training, arm.rollouts_per_step
    parts = training.gradient_accumulation_steps
    if parts > batch:
        most = f"at most a batch's {batch} rollouts"
        raise Wrong.value("training.gradient_accumulation_steps", parts, most, arm)
    # a repair of the adapter alone has no counterpart in a control without one
    no_adapter = not training.lora_r and arm.design != "alone"
    if no_adapter and training.lora_alpha != TrainingSettings.lora_alpha:
        right = f"{TrainingSettings.lora_alpha} with lora_r 0: full fine-tuning has no adapter"
        raise Wrong.value("training.lora_alpha", training.lora_alpha, right, arm)
    if training.kl_place == "reward":
        for key, needed in _FOR_KL_IN_REWARD.items():
            if (value := getattr(training, key)) != needed:
                right = f"{typed(needed)} with kl_place reward"
                raise Wrong.value(f"training.{key}", typed(value), right, arm)
    # every process has as many sequences as any other
    if batch % processes:
        raise Wrong(
            f"key 'launch.processes' is {processes}, expected a divisor of a batch's {batch} "
            f"rollouts in arm '{arm.arm}'"
        )
