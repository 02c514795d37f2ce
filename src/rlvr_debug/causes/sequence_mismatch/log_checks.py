"""What a log shows for sequence-mismatch: from outside it looks as a hidden context does."""

from rlvr_debug.causes.sampler_gap import other_context as other_sequence

__all__ = ["other_sequence"]
