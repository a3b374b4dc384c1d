"""docs/own-net.md: its commands, typed in a folder that has its file and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_guides import ROOT, bring, commands

from minidl.tools import cli


@pytest.mark.slow
def test_the_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    """On generated digits, few of them."""
    for extra in ("matplotlib", "PIL"):
        pytest.importorskip(extra, reason=f"{extra} is not installed: a command needs it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.setenv("MINIDL_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    page, done = ROOT / "docs" / "own-net.md", []
    bring(page, tmp_path)
    for program, command, *flags in commands(page.read_text(encoding="utf-8")):
        assert program == "minidl"
        few = ["--limit-train", "300", "--limit-test", "100"] if "--output-dir" in flags else []
        assert cli.main([command, *flags, *few]) == 0, (command, flags, capsys.readouterr().err)
        done.append(command)
    assert done == ["summary", "train", "train", "train", "predict", "report", "plot", "summary", "profile", "runs"]
    out = capsys.readouterr().out
    assert all(words in out for words in ("after 3 epochs", "weights runs/mine/weights.h5", "cat.png: ", "report.html",
                                          "Conv2d (12,1,5,5)", "my_net.py:build, batch 128"))
