"""Faults that are planted in verl's driver and worker, by name."""
FAULTS = {}
