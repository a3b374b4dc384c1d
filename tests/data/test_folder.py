"""A data set from folders of pictures."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidl.data import from_folder, train_and_test
from minidl.data.chance import chances, for_the_test
from minidl.frontend import cli

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: no picture can be read")


def picture(path: Path, shape: tuple[int, ...] = (8, 8, 3), value: Any = None, **options: Any) -> np.ndarray:
    """Write one; returns its pixels (h,w) or (h,w,c)."""
    pixels = np.random.default_rng(len(str(path.name))).integers(0, 256, shape, np.uint8)
    if value is not None:
        pixels[...] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    wanted = [picture(tmp_path / name) for name in ("cats/b.png", "cats/c.BMP", "dogs/a.png")]
    for junk in ("cats/notes.txt", "readme.md", ".hidden/a.png", "empty/notes.txt"):
        (tmp_path / junk).parent.mkdir(exist_ok=True)
        (tmp_path / junk).write_text("no picture")
    found = from_folder(tmp_path, 8)
    assert (found.name, found.split, found.source) == (tmp_path.name, "train", str(tmp_path))
    assert found.classes == ("cats", "dogs")
    assert found.labels.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(found.images, np.stack(wanted).transpose(0, 3, 1, 2))
    assert from_folder(str(tmp_path), (8, 8), split="test").split == "test"


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_mode_becomes_that_of_the_channels(tmp_path: Path, mode: str, channels: int) -> None:
    (tmp_path / "a").mkdir()
    suffix = "tif" if mode == "CMYK" else "png"
    Image.new("RGB", (9, 9), (255, 255, 255)).convert(mode).save(tmp_path / "a" / f"x.{suffix}")
    images = from_folder(tmp_path, (5, 4), channels=channels).images
    assert (images.shape, images.dtype) == ((1, channels, 5, 4), np.uint8)
    assert (images == 255).all()


def test_the_middle_is_cut_to_shape_and_scaled(tmp_path: Path) -> None:
    wide = np.zeros((6, 18, 3), np.uint8)
    wide[:, 5:13] = 200
    picture(tmp_path / "a" / "x.png", wide.shape, wide)
    assert (from_folder(tmp_path, 3).images == 200).all()
    assert (from_folder(tmp_path, (2, 6)).images[0, 0] > 150).tolist() == [[False, False, True, True, False, False]] * 2


def test_a_picture_that_says_it_lies_on_its_side_is_turned(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6                       # a quarter to the right
    picture(tmp_path / "a" / "x.png", pixels.shape, pixels, exif=exif)
    assert from_folder(tmp_path, 4).images[0, 0].tolist() == [[0, 0, 0, 255]] * 4


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize("content", [b"", b"no picture", "half", "another kind"])
def test_a_file_that_is_no_picture_is_named(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "a" / "x.png"
    picture(file, (50, 50, 3))
    if content == "another kind":
        Image.open(file).save(file, format="JPEG")
    else:
        file.write_bytes(file.read_bytes()[:3000] if content == "half" else content)
    said = f"from_folder: {re.escape(str(file))} cannot be read as a picture \\(.*\\); remove it or get it anew$"
    with pytest.raises(ValueError, match=f"^{said}"):
        from_folder(tmp_path, 8)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_of_too_many_pixels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a" / "x.png", (50, 50, 3))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"x.png cannot be read as a picture \(Image size \(2500 pixels\) exceeds"):
        from_folder(tmp_path, 8)


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "x.png")
    said = (f"from_folder: {re.escape(str(tmp_path))} has no folder with pictures \\(.png, .jpg, .* into a folder "
            "of its own")
    with pytest.raises(ValueError, match=f"^{said}"):
        from_folder(tmp_path, 8)
    with pytest.raises(FileNotFoundError, match=r"^from_folder: .*nowhere is not a folder; name one that holds a f"):
        from_folder(tmp_path / "nowhere", 8)


@pytest.mark.parametrize(("size", "channels"), [(0, 3), ((3, -1), 3), (8, 2)])
def test_no_such_size(tmp_path: Path, size: Any, channels: int) -> None:
    said = re.escape(f"from_folder: size is {size!r} and channels {channels} but must be at least 1, and 1 or 3")
    with pytest.raises(ValueError, match=f"^{said}"):
        from_folder(tmp_path, size, channels=channels)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a" / "x.png")
    real = builtins.__import__

    def without(name: str, *given: Any, **options: Any) -> Any:
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *given, **options)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"^from_folder: Pillow is not installed; run pip install 'minidl\[image\]'$"):
        from_folder(tmp_path, 8)


# ---------------------------------------------------------------- both splits
def shelf(root: Path, *classes: str, count: int = 10) -> Path:
    """Pictures whose grey value tells class and number."""
    for c, name in enumerate(classes):
        for i in range(count):
            picture(root / name / f"{i:02}.png", value=100 * c + i)
    return root


def values(dataset: Any) -> list[int]:
    return list(dataset.images[:, 0, 0, 0])


def test_one_picture_of_five_is_for_the_test(tmp_path: Path) -> None:
    share = np.mean(for_the_test(chances((f"cat/{i:04}.png" for i in range(10_000)), seed=0)))
    assert abs(share - 0.2) < 0.012                        # three deviations
    train, test = train_and_test(shelf(tmp_path / "pets", "cat", "dog"), 8)
    assert (train.classes, test.classes) == (("cat", "dog"), ("cat", "dog"))
    assert (train.name, train.split, test.name, test.split) == ("pets", "train", "pets", "test")
    assert train.source == test.source == str(tmp_path / "pets")
    assert sorted(values(train) + values(test)) == [*range(10), *range(100, 110)]
    for part in (train, test):
        assert [value // 100 for value in values(part)] == part.labels.tolist()
    assert values(train) != sorted(values(train))          # so that the first of them are of all classes
    again, other = (train_and_test(tmp_path / "pets", 8, seed=seed)[1] for seed in (0, 1))
    assert values(again) == values(test) != values(other)


def test_a_folder_that_grows_keeps_its_splits(tmp_path: Path) -> None:
    """Nothing that was trained on may be tested with later; the least folder has one picture for the test."""
    trained: set[int] = set()
    for count in (2, 3, 6, 20, 60):
        train, test = train_and_test(shelf(tmp_path, "cat", "dog", count=count), 2, seed=3)
        assert min(len(train), len(test)) > 0
        assert trained <= {*values(train)}
        trained = {*values(train)}


@pytest.mark.parametrize("second", ["test", "val"])
def test_splits_that_are_folders(tmp_path: Path, second: str) -> None:
    shelf(tmp_path / "train", "cat", "dog", count=6)
    shelf(tmp_path / second, "cat", "dog", count=3)
    train, test = train_and_test(tmp_path, 8, channels=1)
    assert (train.images.shape, test.images.shape, test.split) == ((12, 1, 8, 8), (6, 1, 8, 8), "test")
    assert sorted(values(train)) == [*range(6), *range(100, 106)] != values(train)


def test_splits_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    shelf(tmp_path / "train", "cat", "dog", count=2)
    with pytest.raises(FileNotFoundError, match=r"^train_and_test: .* has a folder train but neither test nor val; "):
        train_and_test(tmp_path, 8)
    shelf(tmp_path / "val", "cat", "cow", count=2)
    with pytest.raises(ValueError, match=r"^train_and_test: .*train and .*val have not the same classes \(cow is in "
                                         r"one alone\); give both the same folders"):
        train_and_test(tmp_path, 8)
    with pytest.raises(ValueError, match=r"^train_and_test: .* has 2 pictures, too few for two splits; add some"):
        train_and_test(shelf(tmp_path / "few", "cat", "dog", count=1), 8)


@pytest.mark.slow
def test_train_and_predict_by_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    shelf(tmp_path / "pets", "dark", "bright")
    run = ["train", "--model", "lenet5", "--batch-size", "4", "--no-progress", "--output-dir", "run"]
    assert cli.main([*run, "--data", "pets", "--epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert f"lenet5 on pets ({tmp_path}/pets): 16 training and 4 test images" in out
    assert "lenet5 on pets: test accuracy 100.00 %" in out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"] == str(tmp_path / "pets")
    monkeypatch.chdir(tmp_path / "pets")                   # a run goes on from anywhere
    assert cli.main(["train", "--resume", "../run", "--epochs", "4"]) == 0
    assert cli.main(["train", "--eval", "../run"]) == 0
    capsys.readouterr()
    assert cli.main(["predict", "--weights", "../run/weights.h5", "bright/00.png", "dark/00.png"]) == 0
    bright, dark = capsys.readouterr().out.splitlines()
    assert bright.startswith("bright/00.png: bright ")
    assert dark.startswith("dark/00.png: dark ")
    assert bright.endswith("(RGB 8x8, resized to 32x32, grey)")


@pytest.mark.slow
def test_weights_of_other_classes_are_not_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """As many classes under other names would be counted as if they were the same."""
    monkeypatch.chdir(tmp_path)
    shelf(tmp_path / "pets", "dark", "bright")
    flags = ["--data", "pets", "--epochs", "0", "--output-dir", "run"]
    assert cli.main(["train", "--model", "lenet5", "--no-progress", *flags]) == 0
    (tmp_path / "pets" / "dark").rename(tmp_path / "pets" / "night")
    assert cli.main(["train", "--eval", "run"]) == 2
    assert ("run/weights.h5 knows the classes bright, dark, but pets has bright, night; name the data that it was "
            "trained on") in capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.usefixtures("drawing")
def test_a_report_finds_the_test_pictures_by_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shelf(tmp_path / "pets", "dark", "bright")
    flags = ["--data", "pets", "--epochs", "1", "--batch-size", "4", "--seed", "2", "--output-dir", "run"]
    assert cli.main(["train", "--model", "lenet5", "--no-progress", *flags]) == 0
    assert cli.main(["plot", "run"]) == 0
    report = Path("run/report.html").read_text(encoding="utf-8")
    assert "<h1>lenet5 on pets</h1>" in report
    assert re.search(r"\d of 3 test images are right", report)
    (tmp_path / "pets").rename(tmp_path / "moved")
    assert cli.main(["plot", "run"]) == 0
    assert "No test set was given" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.deep
def test_images_larger_than_the_model_reads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--model", "lenet5", "--data", "synthetic-shapes-224"]) == 2
    assert ("--data synthetic-shapes-224 has images of 224x224, but --model lenet5 reads images of 32x32; "
            "use another of both") in capsys.readouterr().err
