"""Trainers that are not ours as the case of a study: TRL's, and any program that keeps the protocol."""
