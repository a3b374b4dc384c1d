"""A data set from pictures of one's own: a folder for each class."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from .datasets import Dataset, Folder

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".gif": "GIF", ".webp": "WEBP", ".ppm": "PPM",
           ".pgm": "PPM", ".tif": "TIFF", ".tiff": "TIFF"}
MODES = {1: "L", 3: "RGB"}


def from_folder(path: Folder, size: int | tuple[int, int], *, channels: int = 3, split: str = "train") -> Dataset:
    """The pictures in path/<class>/, for each class a folder: images uint8 (n,channels,h,w).

    size: h and w, or one number for both: the middle of each picture is cut to this shape and scaled. channels: 3, or 1
    for grey. Classes are the names of the folders, sorted, and within a class pictures are sorted by name; files with
    another ending than a picture's are passed over. Needs Pillow, the extra `image`.

    Raises ValueError for a folder without pictures, a file that is no picture although its name says so, a size below 1
    or other channels; FileNotFoundError for a path that is not a folder; ImportError without Pillow.
    """
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1 or channels not in MODES:
        raise ValueError(f"from_folder: size is {size!r} and channels {channels!r} but must be at least 1, and 1 or 3")
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"from_folder: {root} is not a folder; name one that holds a folder for each class")
    files = {below.name: sorted(file for file in below.iterdir() if file.suffix.lower() in FORMATS)
             for below in sorted(root.iterdir()) if below.is_dir() and below.name[0] != "."}
    files = {name: found for name, found in files.items() if found}
    if not files:
        raise ValueError(f"from_folder: {root} has no folder with pictures ({', '.join(FORMATS)}); put those of each "
                         "class into a folder of its own")
    pictures = [file for found in files.values() for file in found]
    images = np.empty((len(pictures), channels, height, width), np.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as pool:       # decoding releases the interpreter
        for i, image in enumerate(pool.map(partial(_read, size=(width, height), mode=MODES[channels]), pictures)):
            images[i] = image
    labels = np.repeat(np.arange(len(files)), [len(found) for found in files.values()])
    return Dataset(root.name, split, images, labels, tuple(files), str(root))


def _read(file: Path, size: tuple[int, int], mode: str) -> np.ndarray:
    """A picture as uint8 (c,h,w)."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ImportError("from_folder: Pillow is not installed; run pip install 'minidl[image]'") from None
    try:
        with Image.open(file, formats=[FORMATS[file.suffix.lower()]]) as picture:
            upright = ImageOps.exif_transpose(picture).convert(mode)
            pixels = np.asarray(ImageOps.fit(upright, size, Image.Resampling.BILINEAR))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"from_folder: {file} cannot be read as a picture ({error}); remove it or get it "
                         "anew") from None
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
