"""Test faults, used by nothing but the benchmark. One file each, as in rlvr_debug.causes."""

import os

# a folder of somebody else's: `make bench-faults CASES=folder`
FOLDER = "RLVR_DEBUG_PLANTED"
__path__ = [*filter(None, [os.environ.get(FOLDER)]), *__path__]
