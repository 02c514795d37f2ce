"""Test faults, written after the freeze and used by nothing but the benchmark. One file each, as in rlvr_debug.causes."""
