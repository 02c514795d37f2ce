"""Logs of trainings with one mistake each, and of healthy ones: what `diagnose` is scored on (docs/diagnose.md)."""
