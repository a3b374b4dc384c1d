"""An emulated kernel as one page: its source with what each line costs, its faults, which lane of a warp accesses what,
and its place below the roofline of a GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from ...lab.emulator.counts import Request, Table, rules
from ...lab.gpus import GPUS, report
from .page import document, folded
from .svg import roofline, text_at

DEFAULT_ARCH = 90
WORD, ROW = 4, 128                         # bytes: of a bank's word; of global memory that is drawn in a line
CELL, HIGH, LEFT, TOP = 15, 14, 62, 16     # of a word, and of what is before and above all of them
MAX_ROWS = 40


def kernel_page(table: Table, faults: Sequence[str], arch: int = 0) -> str:
    """The page's HTML. arch: a compute capability of GPUS."""
    gpu, total = GPUS[arch or DEFAULT_ARCH], table.total
    intensity = total.flop / total.moved if total.moved else 0.0
    picture = roofline(gpu.flop, gpu.bytes, [(table.kernel, intensity, min(gpu.flop, intensity * gpu.bytes))]) if \
        intensity else ""
    told = report(table, arch or DEFAULT_ARCH)
    of_lines, others = _by_line(table, faults)
    facts = [("blocks", f"{table.blocks:,}"), ("threads per block", f"{table.launch.threads:,}"),
             ("bytes of global memory", f"{total.moved:,}"),
             ("bank conflicts", f"{sum(each.conflicts for each in (total.shared_loads, total.shared_stores)):,}"),
             ("divergent branches", f"{total.divergent:,}"), ("FLOP per byte", f"{intensity:.2f}"),
             ("faults", str(len(faults)))]
    return document(f"{table.kernel} of {table.file}", [
        ("What each line costs", _source(table, of_lines), "wide"),
        ("What the lanes of a warp ask for", _requests(table, arch), "wide"),
        ("Roofline", picture and f"{picture}<p class=faint>{escape(gpu.name)}. The point is the most that its memory "
         "allows, if no cache helps.</p>", ""),
        (told[0], "".join(f"<p>{escape(line.strip())}</p>" for line in told[1:]), "")], others, facts)


def _by_line(table: Table, faults: Iterable[str]) -> tuple[dict[int, list[str]], list[str]]:
    """Faults by the line of the file in which they are, and all others."""
    found: dict[int, list[str]] = {}
    others: list[str] = []
    for fault in faults:
        at = re.match(rf"{re.escape(table.file)}:(\d+): ", fault)
        (found.setdefault(int(at[1]), []) if at else others).append(fault)
    return found, others


def _source(table: Table, faults: dict[int, list[str]]) -> str:
    """The kernel's lines, each with what was counted: the darker, the larger its share of the column's largest."""
    groups = [(title, columns) for _, title, columns in table.columns()]
    cells = [column for _, columns in groups for column in columns]
    most = [max((float(text) for text in column[1:-1] if text), default=0.0) for column in cells]
    head = "".join(f'<th colspan="{len(columns)}">{escape(title)}</th>' for title, columns in groups)
    names = "".join(f"<th>{escape(column[0])}</th>" for column in cells)
    lines = [f"<tr><th></th><th></th>{head}</tr><tr><th></th><th></th>{names}</tr>"]
    for i, (number, text, _) in enumerate([*table.rows(), (0, "total", None)]):
        shares = [float(column[i + 1] or 0) / (top or 1) * bool(number) for column, top in zip(cells, most)]
        counts = "".join(f"<td{_heat(share)}>{column[i + 1]}</td>" for column, share in zip(cells, shares))
        code = f'<td class="code">{escape(text)}</td>'
        lines.append(f'<tr><td{_heat(max(shares, default=0.0))}>{number or ""}</td>{code}{counts}</tr>')
        lines += [f'<tr class="fault"><td></td><td class="code" colspan="{len(cells) + 1}">{escape(fault)}</td></tr>'
                  for fault in faults.get(number, ())]
    return f'<div class="scroll" tabindex="0"><table class="source">{"".join(lines)}</table></div>'


def _heat(share: float) -> str:
    return f' style="background:rgb(224 112 0/{0.75 * share:.2f})"' if share else ""


# ---------------------------------------------------------------- who accesses what
def _requests(table: Table, arch: int) -> str:
    """A picture of each line's costliest request, behind folds; the costliest of shared memory, or of all, is open."""
    texts = {number: text.strip() for number, text, _ in table.rows()}
    titles = {way: title for way, title, _ in table.columns()}
    drawn = [(request, f"line {line}, {titles[way]}: {request.parts} {_unit(request)}{'s' * (request.parts > 1)}, "
              f"{texts.get(line, '')}") for (line, way), request in sorted(table.requests.items())]
    if not drawn:
        return ""
    first = max(range(len(drawn)), key=lambda i: (drawn[i][0].way.startswith("shared"), drawn[i][0].parts))
    return "".join(folded(escape(title), _request(request, arch), i == first)
                   for i, (request, title) in enumerate(drawn))


def _unit(request: Request) -> str:
    return "wavefront" if request.way.startswith("shared") else "sector"


def _request(request: Request, arch: int) -> str:
    """Words of memory as cells. Those of a bank are below each other; of global memory 128 bytes are next to each
    other, with their four sectors. In each cell is the lane that accesses it, or how many do."""
    shared, halves = request.way.startswith("shared"), rules(arch) == 2
    columns = (16 if halves else 32) if shared else ROW // WORD
    at_once = 16 if halves else 32 * WORD // max(WORD, request.size)                   # lanes
    start = min(filter(None, request.at)) // (columns * WORD) * columns
    lanes: dict[int, list[int]] = {}
    for lane, at in enumerate(request.at):
        for word in range(at // WORD, (at + request.size - 1) // WORD + 1) if at else ():
            lanes.setdefault(word - start, []).append(lane)
    rows = {row: i for i, row in enumerate(sorted({word // columns for word in lanes}))}
    asked = Counter((lane // at_once, word % columns) for word, those in lanes.items()
                    for lane in {lane // at_once * at_once for lane in those})
    parts = [text_at(LEFT + (column + 0.5) * CELL, TOP - 4, column, kind="count") for column in range(0, columns, 4)]
    for sector in {word // 8 for word in lanes} if not shared else ():
        if (row := rows[sector * 8 // columns]) < MAX_ROWS:
            parts.append(f'<rect class="moved" x="{LEFT + sector * 8 % columns * CELL}" y="{TOP + row * HIGH}" '
                         f'width="{8 * CELL - 1}" height="{HIGH - 1}"/>')
    for word, those in sorted(lanes.items()):
        column, row = word % columns, rows[word // columns]
        if row >= MAX_ROWS:
            continue
        x, y = LEFT + column * CELL, TOP + row * HIGH
        place = request.places[those[0]] if request.places else ""
        waits = shared and any(asked[lane // at_once, column] > 1 for lane in those)
        who, number = ("lane", those[0]) if len(those) == 1 else ("lanes", f"{len(those)}x")
        parts.append(f'<g><title>{who} {", ".join(map(str, those))}: {escape(place)}</title>'
                     f'<rect class="area s{int(waits)}" x="{x}" y="{y}" width="{CELL - 1}" height="{HIGH - 1}"/>'
                     f'{text_at(x + CELL / 2 - 0.5, y + HIGH - 4, number, kind="count in")}</g>')
    parts += [text_at(LEFT - 6, TOP + (i + 1) * HIGH - 4, f"+{row * columns * WORD} B", "end", "count")
              for row, i in rows.items() if i < MAX_ROWS]
    wide, high = LEFT + columns * CELL, TOP + min(len(rows), MAX_ROWS) * HIGH
    more = f" {len(rows) - MAX_ROWS} more rows are not drawn." if len(rows) > MAX_ROWS else ""
    told = (f"A column is a bank: of two words in one bank that {at_once} lanes ask for, one waits (the other colour)."
            if shared else
            "A row is 128 bytes, in four sectors: grey is moved, but not asked for.")
    return (f'<div class="scroll" tabindex="0"><svg viewBox="0 0 {wide} {high}" style="width:{wide}px" role="img" '
            f'aria-label="who asks for what">{"".join(parts)}</svg></div><p class="faint">Warp {request.warp} of block '
            f'{request.block}: the numbers are those of lanes, 32 of a warp; "4x" is four lanes that ask for the same. '
            f'{told}{more}</p>')
