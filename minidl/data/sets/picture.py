"""The reader of pictures, for training, evaluation and `minidl predict` alike."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from threading import Semaphore
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.host import install, open_file

if TYPE_CHECKING:
    from PIL import Image

# Pillow's name of the format, by the ending of a file. Pillow knows more, and runs Ghostscript for some of them.
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".gif": "GIF", ".webp": "WEBP", ".ppm": "PPM",
           ".pgm": "PPM", ".tif": "TIFF", ".tiff": "TIFF"}
NOT_READ = ".avif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".pbm", ".pnm", ".tga"         # pictures, too
MODES = {1: "L", 3: "RGB"}                 # Pillow's, by the number of channels
MAX_PIXELS = 2**26
LARGE, together = 2**23, Semaphore(4)      # at most 4 pictures of more pixels are decoded at once, to limit memory
KEY_SCALE = {"L;2": 85, "L;4": 17}         # Pillow scales such pixels to 8 bits, but not the transparent one's value
BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_0 = 258, 262, 0     # of TIFF


def read_picture(who: str, path: str | os.PathLike[str], size: tuple[int, int], channels: int
                 ) -> tuple[np.ndarray, str]:
    """A picture as bytes uint8 (channels,h,w), and what was done to it. size: h and w.

    The first of several frames or pages is read. It is turned as its EXIF data say; 16 bits become their upper 8;
    transparent pixels are put on white; it is made grey (1 channel) or RGB (3), cut to its middle if its sides have
    another proportion, and resized.

    Raises, in the name of `who`, ValueError for a file that is not a picture of the format that its ending names (of
    one in FORMATS, if the ending is none of theirs), for more than MAX_PIXELS pixels, and for values of other than
    8 or 16 bits; OSError for a file that cannot be opened; ImportError without Pillow.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ImportError(f"{who}: Pillow is not installed; run {install('image')}") from None
    named = FORMATS.get(Path(path).suffix.lower())
    formats = [named] if named else sorted({*FORMATS.values()})
    with open_file(who, path) as file:
        try:
            with Image.open(file, formats=formats) as picture:
                fault = _fault(picture)
                if not fault:
                    with together if picture.width * picture.height > LARGE else nullcontext():
                        pixels, done = _pixels(picture, size, MODES[channels])
        except Image.DecompressionBombError as error:      # more than Pillow itself opens
            fault = f"cannot be read as a picture ({error}); {_SMALLER}"
        except UnidentifiedImageError:
            fault = f"cannot be read as a picture (its content is not {' or '.join(formats)}); remove it or get it anew"
        except Exception as error:                         # whatever Pillow raises for a damaged file
            fault = f"cannot be read as a picture ({error or type(error).__name__}); remove it or get it anew"
    if fault:
        raise ValueError(f"{who}: {path} {fault}")
    return pixels, done


_SMALLER = f"make it smaller, at most {MAX_PIXELS:,} pixels"


def _fault(picture: Image.Image) -> str | None:
    """Why the picture cannot be read correctly, as far as its header says."""
    key, tags = picture.info.get("transparency"), getattr(picture, "tag_v2", {})
    if picture.width * picture.height > MAX_PIXELS:
        return f"has {picture.width}x{picture.height} pixels; {_SMALLER}"
    if picture.mode == "F" or (picture.mode == "I" and picture.format == "TIFF"):
        return (f"has values of {tags.get(BITS_PER_SAMPLE, (32,))[0]} bits (mode {picture.mode}), whose black and "
                "white are unknown; convert it to 8 or 16 bits without a sign")
    if picture.mode[0] == "I" and tags.get(PHOTOMETRIC) == WHITE_IS_0:
        return "has 16 bits, and its white is 0; convert it to 8 bits, or to a black of 0"
    if _raw_mode(picture) == "RGB;16B" and key is not None:            # Pillow keeps 8 bits of it
        return "has a transparent colour of 16 bits per channel; convert it to 8 bits"
    return None


def _raw_mode(picture: Any) -> str:
    """How pixels are stored in a file that is not decoded yet, in Pillow's words."""
    how = picture.tile[0][3] if picture.tile else ""
    return str(how[0] if isinstance(how, tuple) and how else how)


def _pixels(picture: Any, size: tuple[int, int], mode: str) -> tuple[np.ndarray, str]:
    """The pixels uint8 (c,h,w) of an open picture, and what was done."""
    from PIL import Image, ImageOps

    key, scale = picture.info.get("transparency"), KEY_SCALE.get(_raw_mode(picture))
    if scale and key is not None:
        picture.info["transparency"] = scale * key
    shift = getattr(picture, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))[0] - 8
    ImageOps.exif_transpose(picture, in_place=True)
    done = [f"{picture.mode} {picture.width}x{picture.height}"]
    whole: Image.Image = picture
    if whole.mode[0] == "I":
        values = np.asarray(whole)
        whole = Image.fromarray((values >> shift).astype(np.uint8))
        if key is not None:
            whole.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    if whole.has_transparency_data:
        paper = Image.new("RGB", whole.size, "white")
        whole = whole.convert("RGBA")
        paper.paste(whole, mask=whole)
        whole = paper
        done.append("on white")
    if whole.mode != mode:
        whole = whole.convert(mode)
    height, width = size
    if whole.size != (width, height):
        cut = "cut to its middle and " * (whole.width * height != whole.height * width)
        done.append(f"{cut}resized to {width}x{height}")
        whole = ImageOps.fit(whole, (width, height), Image.Resampling.BILINEAR)
    done.append("grey" if mode == "L" else "RGB")
    return np.array(whole).reshape(height, width, -1).transpose(2, 0, 1), ", ".join(done)
