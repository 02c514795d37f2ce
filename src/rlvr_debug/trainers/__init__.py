"""Trainers by name: each folder here exports one as TRAINER, and is found by itself."""

import functools
import importlib
import pkgutil

from rlvr_debug.trainers.base import Trainer


def trainer_names() -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules(__path__) if info.ispkg)


@functools.cache
def load_trainer(name: str) -> Trainer:
    trainer: Trainer = importlib.import_module(f"{__name__}.{name}").TRAINER
    return trainer
