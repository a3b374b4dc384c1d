"""The wing of the user at the command line. Nothing else needs it.

cli/ holds the commands of `minidl`, one file each, the doctor among them; `train.py` is one of them. plot/ draws runs
and writes their report, onnx.py writes nets as ONNX files, sweep.py trains many nets that differ in settings.

A program gets them from `minidl`: `minidl.cli`, `minidl.plot`, `minidl.onnx`, `minidl.sweep`.
"""
