"""A user's .cu file as kernels alone: its includes are pasted in, and host code is left out, line for line.

The rest compiles with NVRTC as well as in the emulator, so a file can stay as a course hands it out, with `main`,
launches and the C++ library's headers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ..ops.common.sources import BOUNDS, FOLDER, GENERATED

KERNELS = rf"__global__ void\s+{BOUNDS}(\w+)\s*\("           # their names in a text from here
ON_DEVICES = r"cuda_(?:fp16|bf16)\.h|cooperative_groups(?:/\w+)?\.h|mma\.h"     # CUDA's headers that kernels need
LIBRARY = ("algorithm", "array", "cassert", "cmath", "cstdint", "cstdio", "cstdlib", "cstring", "limits", "tuple",
           "type_traits", "utility", "assert.h", "math.h", "stdint.h", "stdio.h", "stdlib.h", "string.h")
LIMITS = "".join(f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in (
    ("FLT_MAX", "3.402823466e+38f"), ("FLT_MIN", "1.175494351e-38f"), ("FLT_EPSILON", "1.192092896e-07f"),
    ("DBL_MAX", "1.7976931348623158e+308"), ("INT_MAX", "2147483647"), ("INT_MIN", "(-2147483647 - 1)"),
    ("UINT_MAX", "4294967295u")))          # which NVRTC does not have
PASTED = dict.fromkeys(("cfloat", "float.h", "climits", "limits.h"), LIMITS)
PASTED["math_constants.h"] = "".join(f"#define CUDART_{name} {value}\n" for name, value in (
    ("INF_F", "__int_as_float(0x7f800000)"), ("NAN_F", "__int_as_float(0x7fffffff)"), ("PI_F", "3.141592654f"),
    ("INF", "__longlong_as_double(0x7ff0000000000000ull)"), ("PI", "3.1415926535897931e+0"),
    ("NAN", "__longlong_as_double(0xfff8000000000000ull)")))
HOST = r"<<<|__host__|\b(?:cuda|wb)[A-Z]\w*|\bstd::(?:c(?:out|err|hrono)|vector|string)\b"      # what only hosts have
TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*|[{};]', re.MULTILINE)
COMMENTS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
SYMBOL = re.compile(r"(?:\bstatic\s+)?((?:__(?:constant|device)__\s+)+)((?:\w+\s+)+?)(\w+)\s*"      # words and name
                    r"((?:\[[^\]]*\]\s*)*)(=[^;]*)?;")           # sizes and values


class Source(NamedTuple):
    """Of a file: the text of its kernels, the C++ library's headers that they may use, which NVRTC does not have, and
    the functions of the host and the headers that are left out."""

    text: str
    headers: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def kernels(self) -> list[str]:
        """Their names. A template is none: its numbers are not known."""
        return [*dict.fromkeys(name for template, name in re.findall(rf"(\btemplate\b[^;{{}}()]*)?{KERNELS}", self.text)
                               if not template)]

    @property
    def types(self) -> dict[str, str]:
        """What the text calls a type by another name: typedef, using and #define."""
        found = re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;|"
                           r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([\w ]+?)[ \t]*$", self.text, re.MULTILINE)
        return {new or also or macro: old or other or text for old, new, also, other, macro, text in found}

    def hint(self, message: str) -> str:
        """What a compiler's message does not say: that a name in it was left out here."""
        missing = [name for name in self.left_out if re.search(rf"\b{re.escape(name.rpartition('/')[2])}", message)]
        if missing:
            return f"; {', '.join(missing)} is of the host: a kernel calls functions that are __device__"
        headers = [name for name in self.left_out if "." in name]
        return f"; not found, and left out: {', '.join(headers)}; put them beside the file" if headers else ""


def read(path: Path) -> Source:
    """The kernels of a file; it may include those of its folder, and minidl's own, "include/common.cuh".

    Raises ValueError for a file that is not a text in UTF-8, and for a .cuh that is not there.
    """
    return written(path.name, text_in(path), path.parent)


def text_in(path: Path) -> str:
    """A source's text, without the mark that some editors put in front (BOM). Raises ValueError if it is not UTF-8."""
    data = path.read_bytes()
    try:
        decoded = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path} is not a text in UTF-8: line {line} has the byte 0x{data[error.start]:02x}; save it "
                         "as UTF-8, or name a .cu file") from None
    return decoded.replace("\r\n", "\n").replace("\r", "\n")       # as read_text has them


def written(name: str, text: str, folder: Path | None = None) -> Source:
    """The same for a text that messages call `name`; folder: that of the files that it may include."""
    headers, left_out = dict[str, None](), dict[str, None]()
    pasted = _pasted(name, text, folder, headers, left_out, set())
    return Source(pasted, tuple(headers), tuple(left_out))


def _pasted(name: str, text: str, folder: Path | None, headers: dict[str, None], left_out: dict[str, None],
            seen: set[str]) -> str:
    """A text with what it includes."""
    if folder != FOLDER:
        text = _kernels_only(_uncommented(text), left_out)
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(text.splitlines(), 1):
        include = re.match(r'\s*#\s*include\s*[<"](.+?)[>"]', line)
        if include is None or re.fullmatch(ON_DEVICES, include[1]):
            lines.append(line)
            continue
        wanted = include[1]
        place = next((each for each in (folder, FOLDER) if each and (each / wanted).is_file()), None)
        inner = text_in(place / wanted) if place else {**PASTED, **GENERATED}.get(wanted)
        if inner is not None and wanted not in seen:
            seen.add(wanted)
            lines += [_pasted(wanted, inner, place or FOLDER, headers, left_out, seen), f'#line {number + 1} "{name}"']
            continue
        lines.append("")
        if wanted in LIBRARY:
            headers[wanted] = None
        elif wanted.endswith(".cuh") and inner is None:
            raise ValueError(f"{name} includes {wanted}, which is not there; put it beside the file, or include what "
                             'minidl/ops/cuda holds, as "include/common.cuh"')
        elif inner is None and not re.search("cuda|device", wanted):
            left_out[wanted] = None
    return "\n".join(lines)


def _uncommented(text: str) -> str:
    return COMMENTS.sub(lambda found: found[0] if found[0][0] in "'\"" else "\n" * found[0].count("\n") or " ", text)


# ---------------------------------------------------------------- host code
def _kernels_only(text: str, left_out: dict[str, None]) -> str:
    """A text without the functions, classes and variables of the host; with kernels as the loaders look for them."""
    on_device = [name for name, value in re.findall(r"^[ \t]*#\s*define\s+(\w+)(.*)$", text, re.MULTILINE)
                 if "__device__" in value]
    kept, start, depth, begin = list[str](), 0, 0, 0
    for token in TOKENS.finditer(text):
        what = token[0][-1] if len(token[0]) == 1 else token[0].lstrip()[0]
        depth -= what == "}" and depth > 0
        header = text[start:begin or token.start()]
        if what == "{":
            if depth or not re.search(r'^\s*(?:inline\s+)?namespace\b|extern\s*"C"\s*$', header):
                begin = begin if depth else token.start()
                depth += 1
                continue
        elif depth or what not in "#};":
            continue
        item = text[start:token.end()]
        if what != "#" and _is_hosts(header, text[begin or start:token.end()], on_device, begin > 0):
            named = re.search(r"([\w~]+)\s*\(", header)
            left_out.update({named[1]: None} if named and begin else {})
            item = "".join(re.findall(r"^[ \t]*#(?:\\\n|[^\n])*|\n", item, re.MULTILINE))
        kept.append(item)
        start, begin = token.end(), 0
    return _named("".join([*kept, text[start:]]))


def _is_hosts(header: str, body: str, on_device: list[str], braces: bool) -> bool:
    """Whether a definition, before and from its brace, is of no use to a kernel."""
    if re.search("__(?:device|global|constant|shared)__|constexpr", header) or any(
            re.search(rf"\b{name}\b", header) for name in on_device):
        return False
    words = re.sub(r"template\s*<[^{;]*>(?=\s*\w)", "", header).split()
    if braces and "(" in header and "=" not in header.partition("(")[0] and (
            not words or words[0] not in ("struct", "class", "union", "enum")):
        return True                        # a function, which no kernel can call
    return bool(re.search(HOST, header + body)) and "__device__" not in body


def _named(text: str) -> str:
    """Kernels are extern "C" __global__ void, in this order, so that their names stay as they are."""
    text = re.sub(r"__global__(\s+)(__launch_bounds__\s*\([^{;]*?\))\s*void\b", r"__global__ void\1\2", text)
    text = re.sub(r"\bvoid(\s+)__global__\b|__global__(\s+)void\b", lambda found: "__global__ void" + "\n" * (
        found[1] or found[2]).count("\n"), text)
    return text if 'extern "C"' in text else re.sub(
        r"(?<!>)(?<!> )(?<!>\n)(?:\b(?:static|inline)\s+)*__global__ void", 'extern "C" __global__ void', text)
