"""Imported by verl in each of its processes (VERL_USE_EXTERNAL_MODULES): its trainers and engines are watched once they are imported."""

import importlib.util
import json
import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

from rlvr_debug.recorders.verl.recorder import watch_ray_trainer, watch_v1_trainer
from rlvr_debug.recorders.verl.worker import Told, watch_engine

_TOLD = "RLVR_DEBUG_VERL"
_FORWARDED = (_TOLD, "VERL_USE_EXTERNAL_MODULES", "PYTHONPATH")
_SEAMS = {
    "verl.trainer.ppo.ray_trainer": ("RayPPOTrainer", watch_ray_trainer),
    "verl.trainer.ppo.v1.trainer_base": ("PPOTrainer", watch_v1_trainer),
    "verl.workers.engine.base": ("BaseEngine", watch_engine),
}


class _Finder(MetaPathFinder):
    """Finds the modules of verl's trainers and engines as the others do, and has each watched once it is executed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in _SEAMS:
            return None
        sys.meta_path.remove(self)
        try:
            spec: Any = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        execute, (kind, watch) = spec.loader.exec_module, _SEAMS[name]

        def executed(module: Any) -> None:
            execute(module)
            watch(getattr(module, kind), Told(**json.loads(os.environ[_TOLD])))

        spec.loader.exec_module = executed
        return spec


def _forward() -> None:
    """Have Ray's workers, on whichever machine, import this module too."""
    import ray

    init = ray.init

    def begun(*given: Any, runtime_env: Any = None, **named: Any) -> Any:
        own = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
        asked = dict(runtime_env or {})
        asked["env_vars"] = own | (asked.get("env_vars") or {})
        return init(*given, runtime_env=asked, **named)

    ray.init = begun


if _TOLD in os.environ:
    sys.meta_path.insert(0, _Finder())
    _forward()
