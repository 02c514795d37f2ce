"""Reads all names of deviations where it is imported, for the forks of a process (forks.py)."""

from rlvr_debug.replay.consequences import CONSEQUENCES
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.variants import check_names

check_names([segment.name for segment in SEGMENTS], CONSEQUENCES)
