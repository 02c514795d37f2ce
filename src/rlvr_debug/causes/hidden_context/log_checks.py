"""What a log shows for hidden-context."""

from rlvr_debug.causes.readings import other_context as other_context
