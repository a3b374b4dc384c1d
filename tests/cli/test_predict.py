"""`minidl predict`: pictures of any kind, prepared as in training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import data, nn, ops, zoo
from minidl.core.host import install
from minidl.data.sets.picture import read_picture
from minidl.nn.weights import WeightsError, read_metadata
from minidl.tools import cli
from minidl.tools.cli import predict
from minidl.training.stored import Stored

pytestmark = pytest.mark.usefixtures("elsewhere")

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pictures cannot be read")


@pytest.mark.parametrize(("draw", "channels", "done", "expected"), [
    (lambda: Image.new("L", (28, 28), 200), 1, "L 28x28, grey", 200),
    (lambda: Image.new("RGB", (60, 40), (10, 10, 10)), 1, "RGB 60x40, cut to its middle and resized to 28x28, grey",
     10),
    (lambda: Image.new("RGB", (56, 56), (7, 7, 7)), 3, "RGB 56x56, resized to 28x28, RGB", 7),
    (lambda: Image.new("1", (28, 28), 1), 1, "1 28x28, grey", 255),
    (lambda: Image.new("P", (28, 28), 0), 3, "P 28x28, RGB", 0),
    (lambda: Image.new("RGBA", (28, 28), (0, 0, 0, 0)), 1, "RGBA 28x28, on white, grey", 255),
    (lambda: Image.new("LA", (28, 28), (0, 255)), 1, "LA 28x28, on white, grey", 0),
    (lambda: Image.fromarray(np.full((28, 28), 200 * 257, np.uint16)), 1, "I;16 28x28, grey", 200),
])
def test_a_picture_of_any_mode_and_size(draw: Callable[[], Any], channels: int, done: str, expected: int) -> None:
    draw().save("one.png")
    image, told = read_picture("predict", "one.png", (28, 28), channels)
    assert image.shape == (channels, 28, 28)
    assert image.dtype == np.uint8
    assert (image == expected).all()
    assert told == done


def test_a_picture_is_turned_as_its_camera_says() -> None:
    drawn = np.zeros((28, 28), np.uint8)
    drawn[0] = 255                                         # its first row
    exif = Image.Exif()
    exif[0x0112] = 6                                       # is to be its right side
    Image.fromarray(drawn).save("turned.png", exif=exif)
    image, _ = read_picture("predict", "turned.png", (28, 28), 1)
    assert (image[0, :, -1] == 255).all()
    assert image[0, :, :-1].max() == 0


class Watching(nn.Module):
    """A net that says 1 where the picture is bright, and keeps what it was given."""

    def forward(self, x: minidl.Tensor) -> minidl.Tensor:
        self.given = x.numpy()
        mean = self.given[:, :, 2:-2, 2:-2].mean((1, 2, 3))
        return minidl.Tensor(np.stack([0 * mean, 4 * mean], 1).astype(np.float32))


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    """In place of the net in a file W.h5."""
    net = Watching()
    metadata = {"model": "lenet5", "preprocessing": {"mean": [0.25], "std": [0.5], "padding": 2},
                "classes": ["dark", "bright"]}
    monkeypatch.setattr(predict, "read_net", lambda path, code: Stored(net, metadata, (1, 32, 32)))
    return net


def test_a_picture_is_normalised_and_padded_as_in_training(watching: Watching,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (28, 28), 51).save("one.png")
    Image.new("L", (56, 56), 255).save("two.png")
    assert cli.main(["predict", "--weights", "W.h5", "one.png", "two.png", "--device", "cpu"]) == 0
    assert watching.given.shape == (2, 1, 32, 32)
    assert watching.given.dtype == np.float32
    np.testing.assert_allclose(watching.given[0, 0, 2:-2, 2:-2], (51 / 255 - 0.25) / 0.5, rtol=1e-6)
    assert (watching.given[:, :, :2] == -0.5).all()
    assert (watching.given[:, :, :, -2:] == -0.5).all()
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first == "one.png: dark 59.9 %, bright 40.1 %  (L 28x28, grey)"
    assert second.startswith("two.png: bright 9")
    assert captured.err == ("minidl predict: warning: two.png has a bright border (255 of 255), but the net was "
                            "trained on dark images (mean 64); if it is dark on white, use --invert\n")
    assert not watching.training


def test_pixels_are_those_of_the_loader(watching: Watching) -> None:
    """The same bits through a DataLoader as in training and through predict."""
    digits = data.load("synthetic-digits", "test").first(3)
    ((images, _),) = data.DataLoader(digits, 3, shuffle=False, mean=[0.25], std=[0.5], padding=2)
    for i in range(3):
        Image.fromarray(digits.images[i, 0]).save(f"{i}.png")
    assert cli.main(["predict", "--weights", "W.h5", "0.png", "1.png", "2.png", "--device", "cpu"]) == 0
    np.testing.assert_array_equal(watching.given, images)


def test_invert_is_asked_for_and_never_guessed(watching: Watching, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (28, 28), 255).save("paper.png")
    assert cli.main(["predict", "--weights", "W.h5", "paper.png", "--invert", "--top", "1"]) == 0
    assert (watching.given[0, 0, 2:-2, 2:-2] == -0.5).all()
    assert capsys.readouterr() == ("paper.png: dark 88.1 %  (L 28x28, grey, inverted)\n", "")


@pytest.mark.parametrize(("write", "message"), [
    (lambda path: None, "predict: one.png cannot be opened (No such file or directory); name a file that is there and"),
    (lambda path: path.write_text("no picture"), "cannot be read as a picture (its content is not PNG); remove it"),
    (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40)), "cannot be read as a picture ("),
    (lambda path: Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(path, "TIFF"), "its content is not PNG"),
    (lambda path: path.mkdir(), "is not a file, but a folder, a pipe or a device; write its content to a file, and"),
])
def test_what_is_no_picture_is_one_line(write: Callable[[Path], Any], message: str, tmp_path: Path, watching: Watching,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "one.png")
    assert cli.main(["predict", "--weights", "W.h5", "one.png"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minidl predict: error: ")
    assert "one.png" in line
    assert message in line


def test_a_file_without_preprocessing_is_refused(watching: Watching, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    known = {"preprocessing": None, "classes": None}
    monkeypatch.setattr(predict, "read_net", lambda path, code: Stored(watching, known, (1, 32, 32)))
    assert cli.main(["predict", "--weights", "W.h5", "one.png"]) == 2
    assert "W.h5 does not say how pictures are normalised; save the net by minidl.save(" in capsys.readouterr().err


def test_a_net_that_answers_with_images_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    how = {"mean": [0.1], "std": [0.3], "padding": 2}
    minidl.save(zoo.build("autoencoder", width=4), "images.h5", preprocessing=how)
    Image.new("L", (28, 28), 51).save("one.png")
    assert cli.main(["predict", "--weights", "images.h5", "one.png"]) == 2
    assert ("error: images.h5 is of autoencoder, which answers with (1, 1, 32, 32) for 1 items, not with classes; use "
            "it in Python: minidl.load(path)" in capsys.readouterr().err)


def test_without_pillow_the_extra_is_named(watching: Watching, without: Callable[..., None],
                                           capsys: pytest.CaptureFixture[str]) -> None:
    without("PIL")
    assert cli.main(["predict", "--weights", "W.h5", "one.png"]) == 2
    assert f"predict: Pillow is not installed; run {install('image')}\n" in capsys.readouterr().err


def test_train_without_pillow_names_the_extra(without: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """It was a traceback."""
    Path("pets/cat").mkdir(parents=True)
    Path("pets/cat/x.png").touch()
    without("PIL")
    assert cli.main(["train", "perceptron", "--data", "pets", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == (
        f"minidl train: error: from_folder: Pillow is not installed; run {install('image')}\n")


def test_a_weights_file_alone_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """It builds the net, and says how pictures are prepared and what the classes are called."""
    minidl.manual_seed(3)
    net = zoo.build("lenet5")
    preprocessing, classes = {"mean": [0.25], "std": [0.5], "padding": 2}, [f"digit {i}" for i in range(10)]
    minidl.save(net, "W.h5", preprocessing=preprocessing, classes=classes)
    digits = data.load("synthetic-digits", "test").first(1)
    Image.fromarray(digits.images[0, 0]).save("one.png")
    assert cli.main(["predict", "--weights", "W.h5", "one.png", "--top", "1", "--device", "cpu"]) == 0
    ((images, _),) = data.DataLoader(digits, 1, shuffle=False, **preprocessing)
    row = ops.softmax(net(minidl.Tensor(images)), axis=1).numpy()[0]
    best = int(row.argmax())
    assert capsys.readouterr().out == f"one.png: digit {best} {100 * row[best]:.1f} %  (L 28x28, grey)\n"


@pytest.mark.parametrize("count", [1, predict.BATCH, predict.BATCH + 1, 2 * predict.BATCH + 3])
def test_a_long_table_is_not_one_batch(count: int, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    minidl.manual_seed(1)
    net, sizes = zoo.build("table-mlp", in_features=2, classes=2), []
    minidl.save(net, "w.h5", preprocessing={"mean": [0.0, 0.0], "std": [1.0, 1.0], "padding": 0}, classes=["p", "q"])
    forward = type(net).forward

    def counted(self: nn.Module, x: minidl.Tensor) -> minidl.Tensor:
        sizes.append(len(x))
        return forward(self, x)

    rows = np.random.default_rng(0).standard_normal((count, 2)).round(3)
    Path("t.csv").write_text("".join(f"{x},{y}\n" for x, y in rows.tolist()))
    monkeypatch.setattr(type(net), "forward", counted)
    assert cli.main(["predict", "--weights", "w.h5", "t.csv", "--no-header", "--device", "cpu", "--top", "1"]) == 0
    monkeypatch.undo()
    told = capsys.readouterr().out.splitlines()
    with minidl.no_grad():
        best = net.eval()(minidl.Tensor(rows.astype(np.float32))).numpy().argmax(1)
    assert [line.split(": ")[1][0] for line in told] == ["pq"[i] for i in best]
    assert [line.split(": ")[0] for line in told] == [f"t.csv, line {i + 1}" for i in range(count)]
    assert max(sizes) <= predict.BATCH
    assert sum(sizes) == count


def own_net(layers: str, classes: tuple[str, ...]) -> nn.Module:
    """A net of a table's two columns in w.h5, its code in mine.py, and two rows in t.csv."""
    Path("mine.py").write_text(f"from minidl import nn\ndef build():\n    return nn.Sequential({layers})\n")
    Path("t.csv").write_text("1.5,2.5\n3.5,4.5\n")
    net: nn.Module = eval(f"nn.Sequential({layers})", {"nn": nn})
    rows = data.Table("trees", "train", np.zeros((4, 2)), np.zeros(4, int), classes=classes)
    minidl.save(net, "w.h5", data=data.DataLoader(rows, 2))
    return net


@pytest.mark.parametrize("flags", [["w.h5", "t.csv", "--top", "1", "t.csv"], ["--weights", "w.h5", "t.csv", "t.csv"],
                                   ["--weights", "w.h5", "--", "-w.csv", "t.csv"], ["--", "w.h5", "-w.csv", "t.csv"]])
def test_files_between_flags_and_after_two_dashes(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    own_net("nn.Linear(2, 2)", ("a", "b"))
    Path("-w.csv").write_text(Path("t.csv").read_text())
    assert cli.main(["predict", "--code", "mine.py:build", "--no-header", *flags]) == 0
    named = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert named == ["-w.csv" if "-w.csv" in flags else "t.csv"] * 2 + ["t.csv"] * 2


@pytest.mark.parametrize(("outputs", "classes"), [(1, "ab"), (3, "ab"), (10, "abc"), (1, "a")])
def test_a_net_without_a_logit_for_each_class_is_refused(outputs: int, classes: str,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    """One logit gave the first class to each row, and one too many was none of them."""
    own_net(f"nn.Linear(2, {outputs})", tuple(classes))
    assert cli.main(["predict", "w.h5", "t.csv", "--no-header", "--code", "mine.py:build"]) == 2
    assert (f"answers with {outputs} numbers per item, but has {len(classes)} classes ({', '.join(classes)}); give it "
            "a logit for each, or use it in Python") in capsys.readouterr().err


def test_another_separator_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    own_net("nn.Linear(2, 2)", ("a", "b"))
    for text in ("p;q\n1.5;2.5\n", "1.5;2.5\n3.5;4.5\n"):
        Path("t.csv").write_text(text)
        header = "--header" if "p" in text else "--no-header"
        assert cli.main(["predict", "w.h5", "t.csv", header, "--code", "mine.py:build"]) == 2
        assert ("t.csv has 1 columns but the net reads 2; its values are separated by ';': separate them by commas, "
                "and give it those") in capsys.readouterr().err


def test_classes_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Of two that a file calls cat, one was not printed."""
    net = own_net("nn.Linear(2, 3)", ("a", "b", "c"))
    rows = data.Table("trees", "train", np.zeros((4, 2)), np.zeros(4, int))
    minidl.save(net, "w.h5", data=data.DataLoader(rows, 2), classes=["cat", "cat", "dog"])
    assert cli.main(["predict", "w.h5", "t.csv", "--no-header", "--code", "mine.py:build"]) == 2
    assert ("w.h5 has classes of the same name (cat, cat, dog), which cannot be told apart; save the net with a name "
            "of its own for each") in capsys.readouterr().err


# ---------------------------------------------------------------- a transform of the training
WARNING = ("warning: w.h5 was trained through the transform of a DataLoader, which its file cannot hold, so items are "
           "given to the net without it; if it does more than change them at random, use the net in Python, with that "
           "transform\n")


@pytest.mark.parametrize("ending", ["h5", "npz"])
def test_a_file_says_that_there_was_a_transform(ending: str) -> None:
    """And the shape of what the net was given: it was that of the data before the transform."""
    images = data.Dataset("mine", "train", np.zeros((4, 1, 6, 5), np.uint8), np.zeros(4, int))
    rows = data.Table("mine", "train", np.zeros((4, 3)), np.zeros(4, int))
    net = nn.Linear(2, 2)
    for given, transform, shape in ((images, lambda image, label: (image[:, 1:-1], label), [1, 4, 5]),
                                    (rows, lambda row, label: (np.append(row, row.sum()), label), [4])):
        for how, wanted in ((transform, (True, shape)), (None, (None, list(given.shape)))):
            minidl.save(net, f"w.{ending}", data=data.DataLoader(given, 2, transform=how))
            found = read_metadata(f"w.{ending}")
            assert (found.get("transform"), found["input"]) == wanted
    minidl.save(net, f"w.{ending}", data=data.DataLoader(np.zeros((4, 2)), 2, transform=np.sin))
    assert [read_metadata(f"w.{ending}").get(name) for name in ("transform", "input")] == [True, None]


@pytest.mark.parametrize("text", ["false", "1", "null", "x"])
def test_a_file_says_nothing_else_of_a_transform(text: str) -> None:
    h5py = pytest.importorskip("h5py")
    minidl.save(nn.Linear(2, 2), "w.h5", data=data.DataLoader(np.zeros((4, 2)), 2, transform=np.sin))
    with h5py.File("w.h5", "r+") as file:
        assert file.attrs["transform"] == b"true"
        file.attrs["transform"] = np.bytes_(text)
    with pytest.raises(WeightsError, match=f"has transform '{text}' but must have true as fixed-length text; write "):
        read_metadata("w.h5")


def test_predict_says_that_there_was_a_transform(capsys: pytest.CaptureFixture[str]) -> None:
    net = own_net("nn.Linear(2, 2)", ("p", "q"))
    rows = data.Table("trees", "train", np.zeros((4, 2)), np.zeros(4, int), classes=("p", "q"))
    for transform, told in ((lambda row, label: (2 * row, label), f"minidl predict: {WARNING}"), (None, "")):
        minidl.save(net, "w.h5", data=data.DataLoader(rows, 2, transform=transform))
        assert cli.main(["predict", "w.h5", "t.csv", "--no-header", "--code", "mine.py:build"]) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 2
        assert err == told


@pytest.mark.slow
def test_an_evaluation_says_that_there_was_a_transform(capsys: pytest.CaptureFixture[str]) -> None:
    digits = data.load("synthetic-digits", "test").first(20)
    minidl.save(zoo.build("lenet5"), "w.h5",
                data=data.DataLoader(digits, 2, padding=2, transform=lambda image, label: (255 - image, label)))
    assert cli.main(["train", "--eval", "--load", "w.h5", "--data", "synthetic-digits", "--limit-train", "20",
                     "--limit-test", "20"]) == 0
    assert capsys.readouterr().err == f"minidl train: {WARNING}"


def test_probabilities_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a net that ends in a softmax: a second one made 73 % of 100."""
    net = own_net("nn.Linear(2, 2), nn.Softmax(-1)", ("p", "q"))
    assert cli.main(["predict", "w.h5", "t.csv", "--no-header", "--code", "mine.py:build"]) == 0
    shares = net(minidl.Tensor(np.array([[1.5, 2.5]], np.float32))).numpy()[0]
    assert f"{'pq'[shares.argmax()]} {100 * shares.max():.1f} %, " in capsys.readouterr().out.splitlines()[0]
