"""Train with a trainer and its configuration, `subclass.py MODULE.TRAINER MODULE.CONFIG [name=value ...]`."""

import json
import sys
from importlib import import_module

from common import COMMON, told


def named(path):
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


trainer, config, *words = sys.argv[1:]
own = {name: json.loads(value) for name, _, value in (word.partition("=") for word in words)}
named(trainer)(args=named(config)(**{**COMMON, **own}), **told()).train()
