"""What a log shows for hidden-context."""

from rlvr_debug.causes.readings import other_context

__all__ = ["other_context"]
