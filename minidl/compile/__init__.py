"""`minidl.compile`: record a step's primitive calls once, then replay them without Python's tape.

record.py watches one run of a plain function and keeps its program; passes.py makes programs smaller; replay.py runs
them again: call by call, or on a CUDA device as one captured graph.
"""

from .record import CompileError
from .step import CompiledStep, compile

__all__ = ["CompileError", "CompiledStep", "compile"]
