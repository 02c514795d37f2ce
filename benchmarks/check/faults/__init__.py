"""Faults as users write them: a subclass of GRPOTrainer, or something done to the trainer before it trains.

Each is a function under `faulty`, or stands in a table of `faults`; faults.yaml says what it is. All that the modules of this
folder hold are found.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from benchmarks.check.faults.fault import SEGMENTS, Fault, in_order

__all__ = ["FAULTS", "SEGMENTS", "Fault"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

FAULTS = in_order()
