"""A data set from folders of pictures."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.data import from_folder, own_splits, train_and_test
from minidl.data.chance import chances, for_the_test
from minidl.tools import cli
from minidl.tools.cli import predict
from minidl.training.stored import Stored

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
    for junk in ("cats/notes.txt", "readme.md", ".hidden/a.png", "cats/.thumbs/a.png", "dogs/more/b.txt"):
        (tmp_path / junk).parent.mkdir(exist_ok=True)
        (tmp_path / junk).write_text("no picture")
    found = from_folder(tmp_path, 8)
    assert (found.name, found.split, found.source) == (tmp_path.name, "train", str(tmp_path))
    assert found.classes == ("cats", "dogs")
    assert found.labels.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(found.images, np.stack(wanted).transpose(0, 3, 1, 2))
    assert from_folder(str(tmp_path), (8, 8), split="test").split == "test"


def test_the_middle_is_cut_to_shape_and_scaled(tmp_path: Path) -> None:
    wide = np.zeros((6, 18, 3), np.uint8)
    wide[:, 5:13] = 200
    picture(tmp_path / "a" / "x.png", wide.shape, wide)
    assert (from_folder(tmp_path, 3).images == 200).all()
    assert (from_folder(tmp_path, (2, 6)).images[0, 0] > 150).tolist() == [[False, False, True, True, False, False]] * 2


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


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "x.png")
    said = (f"from_folder: {re.escape(str(tmp_path))} has no folder with pictures \\(.png, .jpg, .* into a folder "
            "of its own")
    with pytest.raises(ValueError, match=f"^{said}"):
        from_folder(tmp_path, 8)
    with pytest.raises(FileNotFoundError, match=r"^from_folder: .*nowhere is not a folder; name one that holds a f"):
        from_folder(tmp_path / "nowhere", 8)


@pytest.mark.parametrize(("names", "message"), [
    (["c/x.png", "a/"], "the class 'a' has no pictures (.png, .jpg, "),
    (["c/x.png", "a/x.heic"], "the class 'a' has no pictures (.png, .jpg, "),
    (["c/x.png", "a/.x/x.png"], "the class 'a' has no pictures (.png, .jpg, "),
    (["c/x.png", "a/2019/x.png"], "a/2019/x.png is in a folder within "),
    (["c/x.png", "a/x.png", "a/2019/01/x.JPG"], "a/2019/01/x.JPG is in a folder within "),
    (["train/a/x.png", "test/a/x.png"], "test/a/x.png is in a folder within "),
    (["cows/", "pets/cat/x.png"], "the class 'cows' has no pictures (.png, .jpg, "),
    (["a/x.png", "b/x.png", "b/y.JFIF"], "b/y.JFIF is a picture of another format than .png, .jpg, "),
    (["a/x.png", "b/x.png", "y.jpg"], "y.jpg is beside the folders of classes, and would be left out"),
    (["a/x.png", "b/x.png", "c@"], "c is beside the folders of classes, and would be left out"),
])
def test_no_class_vanishes(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name[-1] == "@":                # a link to nothing
            os.symlink("/nowhere", tmp_path / name[:-1])
        else:
            (tmp_path / name).mkdir() if name[-1] == "/" else (tmp_path / name).write_bytes(b"no picture")
    with pytest.raises(ValueError, match=f"^from_folder: .*{re.escape(message)}.*; (add some, or remove the folder|move"
                                         " it up into this one, or name the folder that holds the classes|convert or "
                                         "remove it|move it into one of these, or remove it)$"):
        from_folder(tmp_path, 8)
    for split in ("train", "test"):
        shelf(tmp_path / "both" / split, "cat", "dog", count=2)
    tmp_path.joinpath("both", "test", "empty").mkdir()
    with pytest.raises(ValueError, match=r"^from_folder: the class 'empty' has no pictures \(.*both.test.empty; add "):
        train_and_test(tmp_path / "both", 8)


@pytest.mark.parametrize("size", [np.int64(5), np.uint8(5), [5, 5], (np.int32(5), 5), np.array([5, 5])])
def test_a_size_of_numpys_numbers(tmp_path: Path, size: Any) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (7, 7), 9).save(tmp_path / "a" / "x.png")
    assert from_folder(tmp_path, size, channels=np.int64(1)).images.shape == (1, 1, 5, 5)


@pytest.mark.parametrize(("size", "channels"), [(0, 3), ((3, -1), 3), (8, 2), ("8", 3), (8.0, 3), ((8,), 3),
                                                ((8, 8, 3), 3), (None, 3), ((8, "8"), 3), (np.float64(8), 1),
                                                (True, 1)])
def test_no_such_size(tmp_path: Path, size: Any, channels: int) -> None:
    said = re.escape(f"from_folder: size is {size!r} and channels {channels} but must be an int of at least 1 or two "
                     "of them (h, w), and 1 or 3")
    with pytest.raises(ValueError, match=f"^{said}"):
        from_folder(tmp_path, size, channels=channels)


# ---------------------------------------------------------------- one reader
def png(depth: int, kind: int, row: bytes, **chunks: bytes) -> bytes:
    """A PNG of 2x2, of a depth and kind that Pillow does not write. chunks: tRNS."""
    parts = {"IHDR": struct.pack(">IIBBBBB", 2, 2, depth, kind, 0, 0, 0), **chunks,
             "IDAT": zlib.compress(2 * (b"\0" + row)), "IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(held)) + name.encode() + held + struct.pack(">I", zlib.crc32(name.encode() + held))
        for name, held in parts.items())


def tiff(bits: int, kind: int, row: bytes, black: int = 1, order: str = "<") -> bytes:
    """A grey TIFF of 2x2. kind: 1 for numbers without a sign, 2 with one, 3 floating. black: 0 where white is 0."""
    held = 2 * row
    tags = {256: 2, 257: 2, 258: bits, 259: 1, 262: black, 273: 8, 277: 1, 278: 2, 279: len(held), 339: kind}
    return ({"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, 8 + len(held)) + held
            + struct.pack(f"{order}H", len(tags))
            + b"".join(struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in tags.items()) + bytes(4))


def saved(form: str, picture: Any, **options: Any) -> bytes:
    held = io.BytesIO()
    picture.save(held, form, **options)
    return held.getvalue()


def coloured(mode: str, left: Any, right: Any) -> Any:
    picture = Image.new(mode, (2, 2))
    for y in range(2):
        picture.putpixel((0, y), left)
        picture.putpixel((1, y), right)
    return picture


def palette(**options: Any) -> bytes:
    picture = coloured("P", 0, 1)
    picture.putpalette([10, 20, 30, 40, 50, 60])
    return saved("PNG", picture, **options)


def turned(form: str, mode: str, left: Any, right: Any) -> bytes:
    """Told to be turned by half."""
    exif = Image.Exif()
    exif[0x0112] = 3
    return saved(form, coloured(mode, left, right), exif=exif)


CLEAR, DARK, WHITE = (10, 20, 30, 0), (9, 9, 9, 255), (255, 255, 255)
# The file's name, its content, and its left and right pixels, grey or RGB; the rows are equal.
DRAWN: dict[str, tuple[str, Callable[[], bytes], tuple[Any, Any]]] = {
    "1 bit": ("x.png", lambda: saved("PNG", coloured("1", 0, 1)), (0, 255)),
    "grey of 2 bits": ("x.png", lambda: png(2, 0, bytes([0b01110000])), (85, 255)),
    "grey of 16 bits": ("x.png", lambda: png(16, 0, struct.pack(">2H", 0x8000, 0x12FF)), (128, 18)),
    "RGB of 16 bits": ("x.png", lambda: png(16, 2, struct.pack(">6H", 0x8000, 0x12FF, 65535, 0, 255, 256)),
                       ((128, 18, 255), (0, 0, 1))),
    "PGM of 12 bits": ("x.pgm", lambda: b"P5 2 2 4095\n" + 2 * struct.pack(">2H", 0x800, 4095), (128, 255)),
    "PGM of 16 bits": ("x.pgm", lambda: b"P5 2 2 65535\n" + 2 * struct.pack(">2H", 0x8000, 0x12FF), (128, 18)),
    "TIFF of 12 bits": ("x.tif", lambda: tiff(12, 1, b"\x80\x0f\xff"), (128, 255)),
    "TIFF of 16 bits": ("x.tiff", lambda: tiff(16, 1, struct.pack("<2H", 0x8000, 0x12FF)), (128, 18)),
    "TIFF, high byte first": ("x.tif", lambda: tiff(16, 1, struct.pack(">2H", 0x8000, 0x12FF), order=">"), (128, 18)),
    "TIFF whose white is 0": ("x.tif", lambda: tiff(8, 1, b"\x00\xff", black=0), (255, 0)),
    "CMYK": ("x.tif", lambda: saved("TIFF", coloured("CMYK", (0, 0, 0, 255), (0, 0, 0, 0))), (0, 255)),
    "palette": ("x.png", palette, ((10, 20, 30), (40, 50, 60))),
    "palette, one clear": ("x.png", lambda: palette(transparency=1), ((10, 20, 30), WHITE)),
    "palette, half clear": ("x.png", lambda: palette(transparency=b"\x80\xff"), ((132, 137, 142), (40, 50, 60))),
    "GIF, one clear": ("x.gif", lambda: saved("GIF", coloured("L", 7, 9), transparency=9), (7, WHITE)),
    "alpha": ("x.png", lambda: saved("PNG", coloured("RGBA", CLEAR, (10, 20, 30, 255))), (WHITE, (10, 20, 30))),
    "alpha in WebP": ("x.webp", lambda: saved("WEBP", coloured("RGBA", CLEAR, DARK), lossless=True), (255, 9)),
    "alpha in TIFF": ("x.tif", lambda: saved("TIFF", coloured("RGBA", CLEAR, DARK)), (255, 9)),
    "alpha of grey": ("x.png", lambda: saved("PNG", coloured("LA", (9, 0), (9, 255))), (255, 9)),
    "alpha of grey of 16 bits": ("x.png", lambda: png(16, 4, struct.pack(">4H", 0x8000, 0, 0x8000, 65535)), (255, 128)),
    "clear grey": ("x.png", lambda: png(8, 0, b"\x07\x09", tRNS=b"\0\x07"), (255, 9)),
    "clear grey of 1 bit": ("x.png", lambda: png(1, 0, b"\x40", tRNS=b"\0\0"), (255, 255)),
    "clear grey of 2 bits": ("x.png", lambda: png(2, 0, bytes([0b01100000]), tRNS=b"\0\x01"), (255, 170)),
    "clear grey of 4 bits": ("x.png", lambda: png(4, 0, b"\x12", tRNS=b"\0\x01"), (255, 34)),
    "clear grey of 16 bits": ("x.png", lambda: png(16, 0, bytes([128, 0, 128, 1]), tRNS=bytes([128, 0])), (255, 128)),
    "clear RGB": ("x.png", lambda: png(8, 2, bytes([1, 2, 3, 1, 2, 4]), tRNS=b"\0\1\0\2\0\3"), (WHITE, (1, 2, 4))),
    "turned": ("x.png", lambda: turned("PNG", "RGB", (1, 2, 3), (4, 5, 6)), ((4, 5, 6), (1, 2, 3))),
    "turned TIFF": ("x.tif", lambda: turned("TIFF", "L", 1, 4), (4, 1)),
    "turned, of 16 bits": ("x.png", lambda: turned("PNG", "I;16", 0x100, 0x8000), (128, 1)),
    "turned, with alpha": ("x.png", lambda: turned("PNG", "RGBA", CLEAR, DARK), (9, 255)),
    "animated GIF": ("x.gif", lambda: saved("GIF", coloured("L", 9, 200), save_all=True,
                                            append_images=[coloured("L", 0, 0)]), (9, 200)),
    "animated PNG": ("x.png", lambda: saved("PNG", coloured("RGBA", CLEAR, DARK), save_all=True,
                                            append_images=[coloured("RGBA", CLEAR, CLEAR)]), (255, 9)),
    "animated WebP": ("x.webp", lambda: saved("WEBP", coloured("RGB", (9, 9, 9), (99, 99, 99)), save_all=True,
                                              lossless=True, append_images=[coloured("RGB", WHITE, WHITE)]), (9, 99)),
    "pages of TIFF": ("x.tif", lambda: saved("TIFF", coloured("L", 9, 99), save_all=True,
                                             append_images=[coloured("L", 0, 0)]), (9, 99)),
}


class Watching(nn.Module):
    """A net that keeps what it is given."""

    def forward(self, x: minidl.Tensor) -> minidl.Tensor:
        self.given = x.numpy()
        return minidl.Tensor(np.zeros((len(self.given), 2), np.float32))


Reader = Callable[[Path, int], Any]        # of a file folder/train/a/x.png and a number of channels


def by_predict(file: Path, channels: int) -> Any:
    net, how = Watching(), {"mean": [0.0] * channels, "std": [1.0] * channels, "padding": 15}
    with pytest.MonkeyPatch.context() as patch:
        known = {"model": "lenet5", "preprocessing": how, "classes": None}
        patch.setattr(predict, "read_net", lambda path, code: Stored(net, known, (channels, 32, 32)))
        predict.command(argparse.Namespace(weights="W.h5", files=[str(file)], top=1, invert=False, device="cpu",
                                           code=None, json=False))
    return np.rint(255 * net.given[0, :, 15:17, 15:17])


READERS: dict[str, Reader] = {
    "from_folder": lambda file, channels: from_folder(file.parents[1], 2, channels=channels).images[0],
    "training": lambda file, channels: train_and_test(file.parents[2], 2, channels=channels)[0].images[0],
    "evaluation": lambda file, channels: own_splits(file.parents[2], (channels, 2, 2))[1].images[0],
    "predict": by_predict,
}


@pytest.fixture
def shown(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Lay a picture into a training and a test set; gives the file in the first."""
    def lay(name: str, held: bytes) -> Path:
        for folder in ("test/b", "test/a", "train/b", "train/a"):
            file = tmp_path / folder / name
            file.parent.mkdir(parents=True)
            file.write_bytes(held)
        return file
    return lay


@pytest.mark.parametrize("drawn", DRAWN)
def test_all_readers_see_the_same_pixels(drawn: str, shown: Callable[[str, bytes], Path]) -> None:
    name, make, colours = DRAWN[drawn]
    file = shown(name, make())
    wanted = np.array([np.broadcast_to(colour, 3) for colour in colours]).T
    for who, read in READERS.items():
        np.testing.assert_array_equal(read(file, 3), np.stack([wanted, wanted], 1), err_msg=who)
        grey = np.rint([0.299, 0.587, 0.114] @ wanted)
        np.testing.assert_allclose(read(file, 1)[0], [grey, grey], atol=1, err_msg=who)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run\n"
SMALLER = r"; make it smaller, at most 67,108,864 pixels$"
REFUSED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "floating TIFF": ("x.tif", lambda: tiff(32, 3, struct.pack("<2f", 0.5, 1)), r"has values of 32 bits \(mode F\), wh"
                      "ose black and white are unknown; convert it to 8 or 16 bits without a sign$"),
    "TIFF of 32 bits": ("x.tif", lambda: tiff(32, 1, struct.pack("<2I", 5, 300)), r"has values of 32 bits \(mode I\)"),
    "TIFF with signs": ("x.tif", lambda: tiff(16, 2, struct.pack("<2h", -5, 30)), r"has values of 16 bits \(mode I\)"),
    "TIFF of 16 bits whose white is 0": ("x.tif", lambda: tiff(16, 1, b"1234", black=0), "has 16 bits, and its white "
                                         "is 0; convert it to 8 bits, or to a black of 0$"),
    "portable float map": ("x.pgm", lambda: b"Pf 2 2 1.0\n" + bytes(16), r"has values of 32 bits \(mode F\), "),
    "clear RGB of 16 bits": ("x.png", lambda: png(16, 2, bytes(12), tRNS=bytes(6)),
                             "has a transparent colour of 16 bits per channel; convert it to 8 bits$"),
    "PostScript": ("x.png", lambda: POSTSCRIPT, r"cannot be read as a picture \(its content is not PNG\); remove it or "
                                                "get it anew$"),
    "PostScript as PGM": ("x.pgm", lambda: POSTSCRIPT, r"cannot be read as a picture \(its content is not PPM\); "),
    "an icon": ("x.bmp", lambda: saved("ICO", coloured("RGB", WHITE, WHITE)), r".* \(its content is not BMP\)"),
    "many pixels": ("x.pgm", lambda: b"P5 9000 8000 255\n", "has 9000x8000 pixels" + SMALLER),
    "one line": ("x.pgm", lambda: b"P5 67108865 1 255\n", "has 67108865x1 pixels" + SMALLER),
    "many pixels for Pillow": ("x.pgm", lambda: b"P5 90000 8000 255\n",
                               r"cannot be read as a picture \(Image size \(720000000 pixels\) exceeds .*" + SMALLER),
    "GIF of many pixels": ("x.gif", lambda: b"GIF89a" + struct.pack("<2HBBB", 9000, 8000, 0, 0, 0)
                           + b"," + struct.pack("<4HB", 0, 0, 9000, 8000, 0) + b"\x02\x01\0\0;", "has 9000x8000 pix"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("drawn", REFUSED)
def test_all_readers_refuse_the_same(drawn: str, shown: Callable[[str, bytes], Path]) -> None:
    name, make, said = REFUSED[drawn]
    file = shown(name, make())
    for read in READERS.values():
        with pytest.raises(ValueError, match=rf"^(from_folder|predict): .*{re.escape(name)} {said}"):
            read(file, 3)


def test_a_file_whose_name_says_nothing_is_read_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(saved("GIF", coloured("L", 9, 99)))
    assert by_predict(tmp_path / "upload", 1)[0, 0].tolist() == [9, 99]
    (tmp_path / "upload").write_bytes(POSTSCRIPT)
    with pytest.raises(ValueError, match=r"upload cannot be read as a picture \(its content is not BMP or GIF or "):
        by_predict(tmp_path / "upload", 1)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are not files there")
def test_a_pipe_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "x.png")
    said = r"x\.png is not a file, but a folder, a pipe or a device; write its content to a file, and name that$"
    with pytest.raises(ValueError, match=f"^from_folder: .*{said}"):
        from_folder(tmp_path, 2)
    with pytest.raises(ValueError, match=f"^predict: .*{said}"):
        by_predict(tmp_path / "a" / "x.png", 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux does it")
def test_large_pictures_take_memory_by_their_pixels(tmp_path: Path) -> None:
    """8 of 9 million pixels, at most four at a time on any number of processors: 12 bytes per pixel of each."""
    program = ("import os, pathlib\nfrom minidl.data import from_folder\nos.cpu_count = lambda: 8\n"
               "from_folder('.', 2)\nprint(pathlib.Path('/proc/self/status').read_text())")
    (tmp_path / "a").mkdir()
    held = saved("PNG", Image.new("L", (3072, 3072)), transparency=0)
    for i in range(8):
        (tmp_path / "a" / f"{i}.png").write_bytes(held)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(Path(minidl.__file__).parents[1])})
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", done.stdout, re.MULTILINE)
    assert int(kilobytes) >> 10 < 4 * 12 * 9 + 100


# ---------------------------------------------------------------- both splits
def shelf(root: Path, *classes: str, count: int = 10) -> Path:
    """Pictures whose grey value tells class and number."""
    for c, name in enumerate(classes):
        for i in range(count):
            picture(root / name / f"{i:02}.png", value=100 * c + i)
    return root


def values(dataset: Any) -> list[int]:
    return list(dataset.images[:, 0, 0, 0])


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="such names and links cannot be made there")
def test_links_and_names_of_bytes(tmp_path: Path) -> None:
    """A linked folder within a class is named: its pictures were left out. A name need not be UTF-8."""
    root = shelf(tmp_path / "pets", "cat", "dog")
    picture(Path(os.fsdecode(os.fsencode(root / "cat") + b"/\xff.png")), value=7)
    assert sum(map(len, train_and_test(root, 8))) == 21
    shelf(tmp_path, "more")
    (root / "cat" / "linked").symlink_to(tmp_path / "more")
    with pytest.raises(ValueError, match=f"^from_folder: {root}/cat/linked is in a folder within {root}/cat, which "):
        from_folder(root, 8)
    (root / "cat" / "linked").rename(root / "cat" / ".linked")
    (root / "linked").symlink_to(tmp_path / "more")
    assert from_folder(root, 8).classes == ("cat", "dog", "linked")


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


@pytest.mark.parametrize("seed", range(4))
def test_a_picture_keeps_its_side_when_others_are_added(tmp_path: Path, seed: int) -> None:
    trained, tested = set[int](), set[int]()
    for count, names in ((2, ("cat", "dog")), (3, ("cat", "dog")), (4, ("cat", "dog")), (20, ("cat", "dog")),
                         (20, ("cat", "dog", "ant"))):         # which sorts before both
        shelf(tmp_path, *names, count=count)
        if not any(chance <= 0.2 for chance in chances((f"{name}/{i:02}.png" for name in names for i in range(count)),
                                                       seed)):
            with pytest.raises(ValueError, match=rf"has {2 * count} pictures, of which the seed {seed} puts none into "
                                                 r"the test; use seed=(\d+) \(--seed \1\), or add some$") as told:
                train_and_test(tmp_path, 2, seed=seed)
            assert all(map(len, train_and_test(tmp_path, 2, seed=int(re.findall(r"seed=(\d+)", str(told.value))[0]))))
            continue
        train, test = train_and_test(tmp_path, 2, seed=seed)
        of = [{*zip(values(part), map(part.classes.__getitem__, part.labels), strict=True)} for part in (train, test)]
        assert not trained & of[1]
        assert not tested & of[0]
        trained, tested = trained | of[0], tested | of[1]
    assert trained
    assert tested


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
    with pytest.raises(ValueError, match=r"^train_and_test: .* has 2 pictures, of which the seed 0 puts none into"):
        train_and_test(shelf(tmp_path / "few", "cat", "dog", count=1), 8)


@pytest.mark.parametrize("layout", ["", "train", "test"])
def test_one_class_is_not_trained_on(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    """Its loss was 0.0000."""
    root = tmp_path / "pets"
    for split in ("train", "test") if layout else ("",):
        shelf(root / split, *("cat", "dog")[:1 if split == layout else 2], count=5)
    where = root / layout
    said = (f"train_and_test: {where} has only the class 'cat', by the folder {where / 'cat'}, but needs two; add a "
            "folder for each other class, or name the folder that holds the classes")
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        train_and_test(root, 8)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        own_splits(root, (3, 8, 8))
    assert from_folder(where, 8, split="test").classes == ("cat",)         # to look at, to predict
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--data", "pets", "--output-dir", "run"]) == 2
    assert capsys.readouterr().err == f"minidl train: error: {said}\n"
    assert not Path("run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no such folder can be made there")
def test_a_name_that_weights_cannot_have_is_found_before_the_training(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shelf(tmp_path / "pets", "a\tb", "cat")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "perceptron", "--data", "pets", "--device", "cpu", "--output-dir", "run"]) == 2
    assert "save: classes is ['a\\tb', 'cat'], with 'a\\tb', but must be a JSON list" in capsys.readouterr().err
    assert not Path("run").exists()


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
