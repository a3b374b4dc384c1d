"""The words that CONTRIBUTING.md asks for: none of those that it does not want is in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
NAMES = "MOST LEAST FEW ENOUGH FAR NEAR STRAIGHT EACH APART BESIDE"
# Of its table, what a pattern can find -> what to write
WORDS = {
    "_A_BLOCK": "_PER_BLOCK",
    rf"\b(?:{NAMES.replace(' ', '|')})\b": "what it counts or is: MAX_ROWS",
    r"\bis no (?!longer|larger|smaller|more|way)": "is not a",
    r"[Nn]obody\b": "is not read, nothing else reads",
    "[Aa]sked for were": "the subject first",
    "[Rr]efused is": "the subject first",
    "seen to fit": "are checked",
    "on the side": "asynchronously",
    "roll_up": "col2im",
    "slope": "gradient, derivative",
    r"\b(?:lies?|stands?)\b": "is, is stored, is contiguous, is listed",
    r"\bso many\b": "the number itself, as many as, that many",
    r"\b[Ss]omebody\b": "a caller, another process"}
SOUND = re.compile(r"[Tt]here\s+is no |negative_slope")    # the argument of leaky_relu, which is PyTorch's
TEXTS = {file: file.read_text(encoding="utf-8") for folder in ("minidl", "zoo") for suffix in ("py", "cu", "cuh")
         for file in sorted((ROOT / folder).rglob(f"*.{suffix}"))}


@pytest.mark.parametrize("word", WORDS)
def test_no_file_has_it(word: str) -> None:
    found = [f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, each.start()) + 1}: {each[0]!r}; write: {WORDS[word]}"
             for file, text in TEXTS.items() for each in re.finditer(word, text)
             if not SOUND.search(text, max(0, each.start() - 10), each.end())]
    assert not found, "\n".join(found)
