"""Imported by verl in each of its processes (VERL_USE_EXTERNAL_MODULES): its trainers are watched once they are imported."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rlvr_debug.recorders.verl.recorder import Told, watch_ray_trainer, watch_v1_trainer

__all__ = ["TOLD", "VARIABLES"]

TOLD = "RLVR_DEBUG_VERL"
VARIABLES = (TOLD, "VERL_USE_EXTERNAL_MODULES", "PYTHONPATH")
_SEAMS: dict[str, tuple[str, Callable[[Any, Told], None]]] = {
    "verl.trainer.ppo.ray_trainer": ("RayPPOTrainer", watch_ray_trainer),
    "verl.trainer.ppo.v1.trainer_base": ("PPOTrainer", watch_v1_trainer),
}


class _Watching(MetaPathFinder):
    """Finds the modules of verl's trainers as the others do, and watches each once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _SEAMS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            _watch(spec.loader, name)
        return spec


def _watch(loader: Loader, name: str) -> None:
    execute = loader.exec_module
    kind, watch = _SEAMS[name]

    def executed(module: ModuleType) -> None:
        execute(module)
        watch(getattr(module, kind), Told(**json.loads(os.environ[TOLD])))

    loader.exec_module = executed  # type: ignore[method-assign]


def _forward() -> None:
    """Have Ray's workers, on whichever machine, import this module too."""
    import ray

    init = ray.init

    def begun(*given: Any, **named: Any) -> Any:
        runtime = dict(named.get("runtime_env") or {})
        own = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        runtime["env_vars"] = {**own, **(runtime.get("env_vars") or {})}
        return init(*given, **{**named, "runtime_env": runtime})

    ray.init = begun


if TOLD in os.environ:
    sys.meta_path.insert(0, _Watching())
    _forward()
