"""The calculator taskset under the name that verifiers imports: `vf-eval rlvr-debug-calculator`."""

from rlvr_debug.tasksets import CalculatorTaskset, LocalEnv

__all__ = ["CalculatorTaskset", "LocalEnv"]
