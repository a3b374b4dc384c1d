"""`minidl.compile`: record a step's primitive calls, then replay them without Python's tape.

record.py watches a run of a plain function and keeps its program; facts.py and names.py note what else the step read;
agree.py compares two runs, and step.py decides when a program is trusted. signature.py tells which calls it may serve,
and looks.py compares that and all facts in one expression. passes.py makes programs smaller; replay.py runs them
again: call by call, or on a CUDA device as one captured graph.
"""

from .record import CompileError
from .step import CompiledStep, compile

__all__ = ["CompileError", "CompiledStep", "compile"]
