"""The flags of train.py: a run with checkpoints, looked at, gone on with, repeated from its own file; --threads."""

import contextlib
import io
from pathlib import Path

from minidl import cli, training


def run(command, status=0):
    """What `minidl <command>` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        assert cli.main(command.split()) == status, out.getvalue()
    return out.getvalue()


SMALL = "--model perceptron --data synthetic-digits --limit-train 500 --limit-test 200 --lr-schedule constant"
run(f"train {SMALL} --epochs 1 --save-every 4 --threads 1 --seed 3 --output-dir one")
assert {"config.json", "metrics.jsonl", "weights.h5", "checkpoint.h5"} <= {path.name for path in Path("one").iterdir()}
looked = run("train --eval one")
run("train --resume one --epochs 2")
run("train --config one/config.json --threads 2 --output-dir two")       # the same run again, at once

one, two = (training.read_metrics(folder) for folder in ("one", "two"))
assert [m["epoch"] for m in one] == [m["epoch"] for m in two] == [1, 2]
assert [m["train_loss"] for m in one] == [m["train_loss"] for m in two]
assert Path("one/weights.h5").read_bytes() == Path("two/weights.h5").read_bytes()
for printed, metrics in ((looked, one[0]), (run("train --eval one"), one[1]),
                         (run(f"train {SMALL} --eval --load two/weights.h5"), two[1])):
    assert f"test accuracy {100 * metrics['test_accuracy']:.2f} %, test loss {metrics['test_loss']:.4f}" in printed
assert "--lr=0.5 contradicts the run in one" in run("train --resume one --epochs 3 --lr 0.5", status=2)
assert "one holds an earlier run already" in run("train --config one/config.json --output-dir one", status=2)
