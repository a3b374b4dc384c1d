"""`minidl.compile`: record a step's primitive calls, then replay them without Python's tape.

record.py watches a run of a plain function and keeps its program; reads/ notes what else the step read, and compares
all of that in one expression; agree.py compares two runs, and step.py decides when a program is trusted. signature.py
tells which calls it may serve. passes/ makes programs smaller, plan/ puts calls on streams; replay.py runs programs
again: call by call, or on a CUDA device as one captured graph.
"""

from .record import CompileError
from .step import CompiledStep, compile

__all__ = ["CompileError", "CompiledStep", "compile"]
