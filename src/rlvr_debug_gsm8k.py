"""The GSM8K taskset under the name that verifiers imports: `vf-eval rlvr-debug-gsm8k`."""

from rlvr_debug.tasksets import GSM8KTaskset, LocalEnv

__all__ = ["GSM8KTaskset", "LocalEnv"]
