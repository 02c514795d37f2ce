"""Check anybody's trainer: a few recorded steps, each segment of which is computed again.

    a trainer -> record (record.py) -> segments (segments/), each held to an independent reference -> findings

The first segment that deviates is where a fault is. Variants (causes/<slug>/replay.yaml) name it, where one of them
gives what was recorded. docs/check.md describes it for users.
"""
