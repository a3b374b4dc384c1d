"""A data set from folders of pictures."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidl.data import from_folder

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
