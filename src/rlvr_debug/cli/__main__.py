"""`python -m rlvr_debug.cli` is `rlvr-debug`."""

from rlvr_debug.cli import main

main()
