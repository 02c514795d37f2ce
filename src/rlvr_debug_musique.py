"""The MuSiQue taskset under the name that verifiers imports: `vf-eval rlvr-debug-musique`."""

from rlvr_debug.tasksets import TASKSETS, LocalEnv

__all__ = ["LocalEnv", "Taskset"]

Taskset = TASKSETS["musique"]
