"""The examples: short, named in their README, and each prints the result it is there for, at its small size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiers import of_files, tiered

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# What a script prints last, and what its numbers must be.
RESULTS = {
    "adversarial_pair": (r"radius of generated points ([\d.]+) \+- ([\d.]+)", lambda mean, spread:
                         1.8 < mean < 2.2 and spread < 0.5),
    "augmentation": (r"epochs: test accuracy ([\d.]+), augmented ([\d.]+)", lambda plain, augmented:
                     augmented > plain + 0.03),
    "averaged_weights": (r"test accuracy ([\d.]+), of the averaged weights ([\d.]+)$", lambda last, mean:
                         mean > last + 0.02),
    "autoencoder": (r"test error ([\d.]+); of the mean image ([\d.]+)", lambda own, mean: own < 0.6 * mean),
    "burgers": (r"relative error ([\d.]+)$", lambda error: error < 0.6),
    "characters": (r"letters, ([\d.]+) of the next ones are right$", lambda share: share > 0.95),
    "fashion_mnist": (r"test accuracy ([\d.]+)", lambda accuracy: accuracy > 0.3),
    "fine_tuning": (r"from scratch: test accuracy ([\d.]+)\n(?s:.*)frozen: test accuracy ([\d.]+)", lambda fresh, tuned:
                    tuned > fresh + 0.1),
    # Early on both are large: the penalty lets the norm rise by a 20th of the distance over it.
    "gradient_penalty": (r"mean norm ([\d.]+), distance ([\d.]+)\n", lambda norm, distance:
                         distance > 20 and abs(norm - 1 - distance / norm / 20) < 0.3),
    "hessian": (r"worst residual ([\d.]+); first ([\d.]+), by a difference of gradients ([\d.]+);",
                lambda residual, first, second: residual < 0.1 and abs(first / second - 1) < 0.01),
    "learning_rate_search": (r"best rate ([\d.]+)", lambda rate: rate == 0.3),
    "maml": (r"after one step ([\d.]+)\nMAML: square error ([\d.]+), after one step ([\d.]+)$",
             lambda plain, before, after: after < 0.8 * min(plain, before)),
    "mixup": (r"test accuracy ([\d.]+), with mixup ([\d.]+)$", lambda plain, mixed: mixed > plain + 0.01),
    "picture_folder": (r"test accuracy ([\d.]+)$", lambda accuracy: accuracy > 0.85),
    "perceptron": (r"after (\d+) passes (\d+) of 60 points are on the wrong side$", lambda passes, wrong:
                   passes > 1 and not wrong),
    "residual_net": (r"test accuracy ([\d.]+)$", lambda accuracy: accuracy > 0.6),
    "resume": (r"the weights are the same, bit by bit$", lambda: True),
    "shifts": (r"all ([\d.]+), averages ([\d.]+), maxima ([\d.]+)$", lambda plain, average, maximum:
               maximum > plain + 0.03 and average > plain - 0.02),
    "table_regression": (r"square error ([\d.]+); of a straight line ([\d.]+)", lambda net, line:
                         0.9 < net < 0.7 * line),
    "xor": (r"test accuracy of one layer ([\d.]+), of two ([\d.]+)$", lambda one, two: one < 0.8 and two > 0.95),
}


DRAWN = ["perceptron", "xor"]


def printed(script: Path, folder: Path, *before: Path) -> str:
    """What an example prints at its small size. before: a folder of modules that hide others."""
    done = subprocess.run([sys.executable, str(script), "--small"], cwd=folder, capture_output=True, text=True,
                          timeout=300, env={**os.environ, "MINIDL_OFFLINE": "1",
                                            "PYTHONPATH": os.pathsep.join(map(str, (*before, ROOT)))})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", of_files(EXAMPLES, deep=[
    "adversarial_pair", "augmentation", "autoencoder", "averaged_weights", "burgers", "fine_tuning", "gradient_penalty",
    "hessian", "learning_rate_search", "maml", "mixup", "residual_net", "resume", "shifts"]))
def test_an_example_prints_its_result(script: Path, tmp_path: Path) -> None:
    """And draws its picture."""
    if script.stem == "picture_folder":
        pytest.importorskip("PIL", reason="Pillow is not installed")
    text = printed(script, tmp_path)
    pattern, right = RESULTS[script.stem]
    found = re.search(pattern, text.rstrip())
    assert found, text
    assert right(*map(float, found.groups())), text
    if script.stem in DRAWN:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
        from matplotlib.image import imread

        pixels = imread(tmp_path / f"{script.stem}.png")
        assert pixels.shape[:2] > (500, 500)
        assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50


@pytest.mark.parametrize("name", tiered(DRAWN, slow=1))
def test_an_example_draws_a_picture_where_it_can(name: str, tmp_path: Path) -> None:
    """Without matplotlib it says why there is none."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError", encoding="utf-8")
    text = printed(ROOT / "examples" / f"{name}.py", tmp_path, tmp_path)
    assert text.startswith("no picture: it needs matplotlib; run pip install matplotlib\n")


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_is_short_and_says_how_to_run_it(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert f"python examples/{script.name}" in text.split('"""')[1]
    assert f"({script.name})" in (ROOT / "examples/README.md").read_text(encoding="utf-8")
