"""Which kernels the emulator's slow tests launch: run by `python -O`, so that nothing is asserted, it prints them.

The launchers are minidl's, on NumPy arrays, and a kernel that is launched does nothing. What is computed is therefore
wrong, and nothing looks at it.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "cuda")]
from emulator import Emulator  # noqa: E402
from test_emulated import (  # noqa: E402
    CASES,
    EMULATED,
    FUSED_STEPS,
    OPS,
    STEPS,
    cupy,
    primitives,
    recorded,
    step_agrees,
    wrap,
)


class Unrun(Emulator):
    def compiled(self, text: str, constants: Any) -> Any:
        return types.SimpleNamespace(run=None)

    def _launch(self, function: Any, *numbers: int) -> None:
        self.launched.add(function.name)


def main() -> None:
    for name in ("assert_allclose", "assert_array_equal", "assert_equal"):
        setattr(np.testing, name, lambda *arguments, **options: None)
    with tempfile.TemporaryDirectory() as folder, (unrun := Unrun(Path(folder))).running(), \
            contextlib.redirect_stdout(sys.stderr):
        for row in (row for row in EMULATED.values() if row.tier == "slow"):
            with contextlib.suppress(ValueError):                      # of sizes that a kernel would have computed
                row.run()
        for op in OPS:
            for case in CASES[op][::len(CASES[op]) // 3]:
                [*primitives.computed(case, cupy.asarray)]
        for name in FUSED_STEPS:
            step_agrees(*recorded(name, np.float32, lambda a: wrap(cupy.asarray(a))), STEPS[name][0], atol=64)
    print(*sorted(unrun.launched))


if __name__ == "__main__":
    main()
