"""The GSM8K taskset under the name that verifiers imports: `vf-eval rlvr-debug-gsm8k`."""

from rlvr_debug.tasksets import TASKSETS, LocalEnv

__all__ = ["LocalEnv", "Taskset"]

Taskset = TASKSETS["gsm8k"]
