"""The MuSiQue taskset under the name that verifiers imports: `vf-eval rlvr-debug-musique`."""

from rlvr_debug.tasksets import LocalEnv, MuSiQueTaskset

__all__ = ["LocalEnv", "MuSiQueTaskset"]
