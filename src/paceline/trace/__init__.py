"""The record of what the pipeline did: written by the engine core, read by whoever wants to know.

:class:`Recorder` writes events, one JSON line each, into a bounded log; :class:`History` reads such lines, from a
running engine or a file, and answers questions about them. Nothing else knows how the lines look.
"""

from paceline.trace.history import History
from paceline.trace.recorder import Recorder

__all__ = ["History", "Recorder"]
