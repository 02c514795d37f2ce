"""Where scripts imported LiveCheck from before `from rlvr_debug import LiveCheck`."""

from rlvr_debug.recorders.trl.live import LiveCheck as LiveCheck
