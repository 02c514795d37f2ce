"""Train with a trainer and its configuration, `subclass.py MODULE.TRAINER MODULE.CONFIG [name=value ...]`."""

import sys
from importlib import import_module

from common import COMMON, settings, told


def named(path):
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


trainer, config, *words = sys.argv[1:]
named(trainer)(args=named(config)(**{**COMMON, **settings(words)}), **told()).train()
