"""Live text against a small terminal: whatever happens, the screen shows the present text in the present styles.

The terminal below is honest where it matters: it wraps when the character after a full row comes, scrolls, cannot
be moved above its screen, moves rows when its width changes (or, like xterm, cuts them off), and fails the test on
anything that is neither text nor one of the few sequences that live text may use.
"""

import re
from itertools import product
from typing import Any, Literal, NamedTuple
from unicodedata import category

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from grimboost import live_text
from grimboost.live_text import LiveText

# ---------------------------------------------------------------- a terminal

SEQUENCES = re.compile(r"\x1b\[(?P<number>[0-9;]*)(?P<name>[AJm])|(?P<char>.)", re.DOTALL)
WIDE = set("漢字、🙂👩")
NOTHING = set("\u0301\u200d\ufe0f")
Opinion = Literal["plain", "joined", "narrow"]
"""How wide a terminal takes some characters to be: one by one, as one picture, or symbols as narrow."""


class Line:
    """One row: columns of (characters, style), None for a wide one's right half; whether the next continues it."""

    def __init__(self) -> None:
        self.columns: list[tuple[str, str] | None] = []
        self.wrapped = False

    def put(self, column: int, width: int, char: str, style: str) -> None:
        blanks: list[tuple[str, str] | None] = [(" ", "")] * (column + width - len(self.columns))
        self.columns += blanks
        for place in range(column, column + width):
            self._clear(place)
        self.columns[column] = (char, style)
        for place in range(column + 1, column + width):
            self.columns[place] = None

    def _clear(self, place: int) -> None:
        """Half of a wide character does not remain."""
        left = place
        while self.columns[left] is None:
            left -= 1
        right = left + 1
        while right < len(self.columns) and self.columns[right] is None:
            right += 1
        for each in range(left, right):
            self.columns[each] = (" ", "")

    def cells(self) -> list[tuple[str, str]]:
        return [cell for cell in self.columns if cell is not None]

    @property
    def text(self) -> str:
        return "".join(char for char, _ in self.cells())


class Screen:
    """A terminal with a scrollback: all lines, of which those from `top` on are on the screen."""

    def __init__(self, width: int, height: int, reflows: bool = True, opinion: Opinion = "plain") -> None:
        self.width, self.height, self.reflows, self.opinion = width, height, reflows, opinion
        self.lines = [Line()]
        self.top = self.row = self.column = 0
        self.full = False  # the row's last column is written, and the cursor still on it
        self.pen: set[str] = set()
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)
        for found in SEQUENCES.finditer(data.decode()):
            if found["name"]:
                self._obey(found["name"], found["number"])
            else:
                self._show(found["char"])

    def _obey(self, name: str, number: str) -> None:
        if name == "A":
            self.row, self.full = max(self.top, self.row - int(number)), False
        elif name == "J":
            assert number == "" and not self.full, "this would erase the last character of a full row"
            self.lines[self.row].columns = self.lines[self.row].columns[: self.column]
            self.lines[self.row].wrapped = False
            self.lines[self.row - 1].wrapped &= self.row == 0 or self.column > 0  # as tmux does
            del self.lines[self.row + 1 :]
        else:
            for each in number.split(";"):
                self.pen = set() if each in ("", "0") else self.pen | {each}

    def _show(self, char: str) -> None:
        if char == "\r":
            self.column, self.full = 0, False
        elif char == "\n":
            self._down()
        else:
            assert category(char) not in ("Cc", "Cs", "Zl", "Zp"), f"{char!r} steers the terminal"
            self._put(char)

    def _down(self) -> None:
        self.row, self.full = self.row + 1, False
        if self.row == len(self.lines):
            self.lines.append(Line())
        self.top = max(self.top, self.row - self.height + 1)

    def _put(self, char: str) -> None:
        style, line = ";".join(sorted(self.pen)), self.lines[self.row]
        place = self.column if self.full else self.column - 1
        before = line.columns[: place + 1]
        last = next((i for i in reversed(range(len(before))) if before[i] is not None), None)
        joined = last is not None and self._width(char, (before[last] or ("", ""))[0]) == 0
        if joined and last is not None:
            whole = (before[last] or ("", ""))[0] + char
            line.columns[last] = (whole, style)
            if whole == "❤\ufe0f" and self.opinion == "joined" and not self.full:
                line.put(last, 2, whole, style)
                self.full, self.column = last + 2 == self.width, min(last + 2, self.width - 1)
            return
        width = self._width(char, "")
        if self.full or self.column + width > self.width:
            line.wrapped = True
            self._down()
            self.column, line = 0, self.lines[self.row]
        line.put(self.column, width, char, style)
        self.full = self.column + width >= self.width
        self.column = min(self.column + width, self.width - 1)

    def _width(self, char: str, before: str) -> int:
        joins = (char in "🙂👩❤" and before.endswith("\u200d")) or (char == "🏽" and before)
        if char in NOTHING or (joins and self.opinion == "joined"):
            return 0
        if char == "ा":
            return int(self.opinion == "plain")
        if char in "🙂👩🏽":
            return 1 if self.opinion == "narrow" else 2
        return 2 if char in WIDE else cell_len(char)

    def resize(self, width: int, height: int) -> None:
        if width != self.width and self.reflows:
            self._reflow(width)
        elif width != self.width:
            self.column, self.full = min(self.column, width - 1), False
            for line in self.lines:
                line.columns = line.columns[:width]
        self.width, self.height = width, height
        filled = len(self.lines) - height if self.reflows else self.top  # some fill a higher window from above
        self.top = max(0, self.row - height + 1, min(self.top, filled))

    def _reflow(self, width: int) -> None:
        """Wrap every line anew, the cursor stays with its character."""
        lines, self.lines = self.lines, []
        here = (0, 0)
        fresh, column = Line(), 0
        for number, line in enumerate(lines):
            for place, cell in enumerate([*line.columns, ("", "")]):
                end = place == len(line.columns)
                size = 1 + (line.columns[place + 1 : place + 2] == [None]) if cell and not end else 0
                if column + size > width:
                    fresh.wrapped = True
                    self.lines.append(fresh)
                    fresh, column = Line(), 0
                if (number, place) == (self.row, self.column + self.full):
                    here = (len(self.lines), column)
                if cell and not end:
                    fresh.put(column, size, *cell)
                column += size
            if not line.wrapped:
                self.lines.append(fresh)
                fresh, column = Line(), 0
        self.row, self.column = here
        self.full, self.column = self.column == width, min(self.column, width - 1)

    def copied(self) -> str:
        """What a person gets who selects everything."""
        return "".join(line.text + ("" if line.wrapped else "\n") for line in self.lines)[:-1]

    def shown(self) -> list[str]:
        return [line.text for line in self.lines]


# ---------------------------------------------------------------- what it should show


class Drawn(NamedTuple):
    """A cell by the book: what is drawn, the most columns that it takes, and its bytes."""

    text: str
    width: int
    start: int
    end: int


CARRIER = "\u25cc"
MOST = {"\u0301": 0, "\u200d": 0, "\ufe0f": 1, "🏽": 2, "ा": 1, **dict.fromkeys(WIDE, 2)}
JOINS = {"\u0301", "\u200d", "\ufe0f", "🏽", "ा"}


def decoded(data: bytes, last: bool) -> list[tuple[str, int]]:
    """Characters by trying; what could become one waits at the end, unless nothing follows."""
    found: list[tuple[str, int]] = []
    while data:
        size = next((n for n in range(1, 5) if fits(data[:n])), 0)
        waits = data == b"\r" or (not size and any(fits(data + bytes(end)) for end in ENDS))
        if waits and not last:
            break
        if data.startswith(b"\r\n"):
            found.append(("\n", 2))
            data = data[2:]
        else:
            found.append((data[:size].decode() if size else "\ufffd", size or 1))
            data = data[size or 1 :]
    return found


ENDS = [end for size in (1, 2, 3) for end in product((0x80, 0x90, 0xA0, 0xBF), repeat=size)]


def fits(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def by_the_book(data: bytes, start: int, width: int, last: bool) -> list[list[Drawn]]:
    """All rows of these bytes, from scratch."""
    rows: list[list[Drawn]] = [[]]
    for char, size in decoded(data, last):
        if char == "\n":
            rows.append([])
        else:
            place(rows, char, start, start + size, width)
        start += size
    return rows


def place(rows: list[list[Drawn]], char: str, start: int, end: int, width: int) -> None:
    column = sum(cell.width for cell in rows[-1])
    if char == "\t":
        fresh = column == width
        rows += [[]] if fresh else []
        column = 0 if fresh else column
        rows[-1] += [Drawn(" ", 1, start, end)] * min(8 - column % 8, width - column)
        return
    char = chr(0x2400 + ord(char)) if char < " " else {"\x7f": "\u2421", "\x9b": "\ufffd"}.get(char, char)
    size = MOST.get(char, cell_len(char))
    before = rows[-1][-1] if rows[-1] else None
    alone = char not in JOINS and category(char) != "Mn"
    joins = not alone or (before and before.text.endswith("\u200d"))
    if before and joins and before.text != " " and before.width + size <= width and len(before.text) < 16:
        rows[-1].pop()
        char, size, start = before.text + char, before.width + size, before.start
        column -= before.width
    elif char == "\u200d":
        return
    elif not alone:
        char, size = CARRIER + char, 1 + size
    if column + size > width:
        rows.append([])
    rows[-1].append(Drawn(char, size, start, end))


def live_on(screen: Screen, color: bool = True) -> LiveText:
    """Live text below something that is already there."""
    screen.write(b"$ a\r\n$ b\r\n")
    return LiveText(screen.write, lambda: screen.width, lambda: screen.height, color, screen.reflows)


class Session:
    """Live text on a terminal that already shows something, beside a record of what should be seen."""

    def __init__(self, screen: Screen, color: bool = True, sure: bool = True) -> None:
        """Not `sure`: rows may be ended by breaks of their own, and those above one be forgotten."""
        self.screen, self.color, self.sure = screen, color, sure
        self.live = live_on(screen, color)
        self.text, self.final, self.slips = b"", 0, list[tuple[int, int]]()
        self.closed = False
        self.width = screen.width
        self.base = 0  # where the oldest line begins that is not wholly final
        self.reachable = 0  # where the first row begins that can be written again
        self.scrolled = False  # rows were cut, or moved by a new width, that could not be written again
        self.resized = False

    def rows(self) -> list[list[Drawn]]:
        return by_the_book(self.text[self.base :], self.base, self.width, self.closed)

    def starts(self) -> list[int]:
        """Where rows begin; an empty one where the next thing will be."""
        rows, starts, at = self.rows(), list[int](), self.base
        for row in rows:
            at = row[0].start if row else at
            starts.append(at)
            at = row[-1].end if row else at
            at += 2 if self.text[at : at + 2] == b"\r\n" else self.text[at : at + 1] == b"\n"
        return starts

    def step(self, name: str, *given: Any) -> None:
        """One call, and what should be seen after it."""
        reach = max(1, self.screen.height - 1)
        before = self.starts()
        if self.screen.width != self.width:
            self.scrolled |= self.reachable > self.base or len(before) > reach
            self.resized, self.width = True, self.screen.width
            self.reachable = max([at for at in self.starts() if at <= self.reachable])
            self.scrolled |= len(self.starts()) > reach
        else:
            self.reachable = max(self.reachable, before[max(0, len(before) - reach)])
        count = len(self.screen.written)
        self._record(name, *given)
        getattr(self.live, name)(*given)
        assert len(self.screen.written) <= count + 1, "one call, one write"
        after = self.starts()
        if after[-1] < self.reachable:
            self.scrolled, self.reachable = True, after[0 if self.sure else -1]
        self.reachable = max(self.reachable, after[max(0, len(after) - reach)])
        self.check()
        self.base = self.text.rfind(b"\n", 0, self.final) + 1
        self.reachable = max(self.reachable, self.base)

    def _record(self, name: str, *given: Any) -> None:
        if name == "add":
            self.text += given[0]
            self.final = len(self.text) if given[1] else self.final
        elif name == "settle":
            self.final = max(self.final, given[0])
        elif name == "retract":
            self.text = self.text[: given[0]]
            self.slips = [(a, min(b, given[0])) for a, b in self.slips if a < given[0]]
        elif name == "slip":
            self.slips.append((given[0], given[0] + given[1]))
        else:
            self.closed = True

    def style(self, cell: Drawn) -> str:
        if not self.color:
            return ""
        if any(a < cell.end and cell.start < b for a, b in self.slips):
            return "31;4"
        return "" if cell.end <= self.final else "2"

    def check(self) -> None:
        screen = self.screen
        rows = [row for row, at in zip(self.rows(), self.starts(), strict=True) if at >= self.reachable]
        assert not screen.pen
        assert screen.row == len(screen.lines) - 1, "nothing is below the text"
        for line, row in zip(screen.lines[-len(rows) :], rows, strict=True):
            assert line.text == "".join(cell.text for cell in row)
            styles = {(char, self.style(cell)) for cell in row for char in cell.text}
            assert {(char, style) for text, style in line.cells() for char in text} <= styles
            if not any(len(cell.text) > 1 for cell in row):
                assert line.cells() == [(cell.text, self.style(cell)) for cell in row]
        assert screen.shown()[:2] == ["$ a", "$ b"], "what was there before stays"
        assert screen.column + screen.full == len(screen.lines[-1].columns), "the cursor is behind the text"
        if not self.resized and not self.scrolled:
            texts = ["".join(cell.text for cell in row) for row in self.whole()]
            assert screen.shown()[2:] == texts

    def whole(self) -> list[list[Drawn]]:
        return by_the_book(self.text, 0, self.width, self.closed)


# ---------------------------------------------------------------- laws

SURE = (
    "a",
    "b ",
    "c d",
    "漢",
    "字、",
    "e\u0301",
    "\n",
    "\r\n",
    "\t",
    "\r",
    "\x1b[2J",
    "\x9b",
    "\x7f",
    "0123456789",
)
PIECES = [text.encode() for text in SURE] + [b"\xff", b"\xe6\xbc", b"\xa2", b"\xf0\x9f"]
DOUBTFUL = ("🙂", "👩\u200d👩", "❤\ufe0f", "\u200d", "👩🏽", "\u0301", "🏽", "का", "ा", "ab")
PICTURES = PIECES + [text.encode() for text in DOUBTFUL] * 2
WOMAN = "👩🏽".encode()
"""As wide as four columns, and narrower where it is cut."""
PLACE = st.integers(0, 40)


def steps(pieces: list[bytes], widths: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    data = st.lists(st.sampled_from(pieces), max_size=8).map(b"".join)
    add = st.tuples(st.just("add"), data, st.booleans())
    live = st.tuples(st.just("add"), data, st.just(False))
    others = [
        st.tuples(st.just("settle"), PLACE),
        st.tuples(st.just("retract"), PLACE),
        st.tuples(st.just("slip"), PLACE, st.integers(1, 8)),
        st.tuples(st.just("resize"), widths, st.integers(1, 9), st.booleans()),
    ]
    return st.lists(st.one_of(add, live, live, *others), max_size=14)


def play(session: Session, script: list[tuple[Any, ...]]) -> None:
    """Places count from the first byte that is not final: nobody retracts final text, and slips come before it."""
    for name, *values in script:
        match name:
            case "resize":
                session.screen.resize(*values[:2])
                if values[2] or not session.screen.reflows:  # rows are cut off: what comes back is not noticed
                    session.step("settle", session.final)
            case "settle" | "retract":
                session.step(name, min(session.final + values[0], len(session.text)))
            case "slip":
                session.step(name, session.final + values[0], values[1])
            case _:
                session.step(name, *values)
    session.step("close")


@settings(max_examples=250, deadline=None)
@given(steps(PIECES, st.integers(4, 12)), st.booleans(), st.booleans())
def test_the_screen_shows_the_present_text_in_the_present_styles(script, reflows, color):
    session = Session(Screen(7, 6, reflows), color)
    play(session, script)
    if reflows and not session.scrolled and b"\t" not in session.text:
        text = "\n".join("".join(cell.text for cell in line) for line in by_the_book(session.text, 0, 10**6, True))
        assert session.screen.copied() == "$ a\n$ b\n" + text


@settings(max_examples=200, deadline=None)
@given(steps(PICTURES, st.just(9)), st.sampled_from(["plain", "joined", "narrow"]))
@example([("add", WOMAN, False), ("add", WOMAN, True), ("add", b"a" + WOMAN, False), ("retract", 0)], "plain")
@example([("add", b"aa" + WOMAN, True), ("add", WOMAN, False), ("retract", 0)], "plain")
@example([("add", b"aaaaaa", True), ("add", WOMAN, False), ("retract", 4)], "plain")
def test_terminals_may_differ_in_how_wide_characters_are(script, opinion):
    play(Session(Screen(9, 6, opinion=opinion), sure=False), script)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=6), st.integers(1, 5))
def test_any_bytes_are_harmless_and_cutting_them_differently_changes_nothing(parts, width):
    screens = [Screen(width, 30), Screen(width, 30)]
    for screen, adds in zip(screens, ([b"".join(parts)], parts), strict=True):
        live = LiveText(screen.write, lambda: width, lambda: 30)
        for data in adds:
            live.add(data, final=False)
        live.close()
    assert screens[0].shown()[-29:] == screens[1].shown()[-29:]


@settings(max_examples=100, deadline=None)
@given(
    steps(PICTURES, st.integers(4, 12)),
    st.sampled_from(["plain", "joined", "narrow"]),
    st.booleans(),
    st.booleans(),
)
def test_a_new_width_costs_nothing_that_stands(script, opinion, reflows, color):
    """Where widths are in doubt a row may stand twice after the window's width has changed; none is lost."""
    screen = Screen(9, 60, reflows, opinion)
    live, text, final = live_on(screen, color), b"", 0
    for name, *values in script:
        match name:
            case "resize":
                screen.resize(values[0], 60)
                live.settle(final)
            case "add":
                live.add(*values)
                text += values[0]
                final = len(text) if values[1] else final
            case "retract":
                text = text[: final + values[0]]
                live.retract(len(text))
            case _:
                final = min(len(text), final + values[0])
                live.settle(final)
    live.close()
    seen = iter("".join(screen.shown()))
    drawn = [cell.text for row in by_the_book(text, 0, 10**6, last=True) for cell in row]
    lost = [char for char in "".join(drawn) if char != " " and char not in seen]
    assert screen.shown()[:2] == ["$ a", "$ b"]
    assert not (lost and reflows), "a terminal that does not wrap anew cuts lines off itself"


# ---------------------------------------------------------------- cases


def written(screen: Screen) -> list[bytes]:
    """What was written since the last time."""
    found, screen.written = screen.written, []
    return found


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", [""]),
        (b"abcd", ["abcd"]),
        (b"abcd\n", ["abcd", ""]),
        (b"abcd\ne", ["abcd", "e"]),
        (b"abcdefgh\n\ni", ["abcd", "efgh", "", "i"]),
        ("ab字cd".encode(), ["ab字", "cd"]),
        ("abc字".encode(), ["abc", "字"]),
        (b"a\tb", ["a   ", "b"]),
        (b"abcd\te", ["abcd", "    ", "e"]),
        (b"a\r\nb\rc\r", ["a", "b␍c"]),
        (b"\x1b[2J\x9b\x7f\x00", ["␛[2J", "\ufffd␡␀"]),
        ("\x85\u2028".encode(), ["\ufffd\ufffd"]),
        (b"\xff\xc3(\xe6\xbc", ["\ufffd\ufffd("]),
        ("e\u0301\n\u0301".encode(), ["e\u0301", CARRIER + "\u0301"]),
        ("a\u200b\n\u200b".encode(), ["a\u200b", ""]),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_rows(data, rows, size):
    screen = Screen(4, 9)
    live = LiveText(screen.write, lambda: 4, lambda: 9)
    for at in range(0, len(data), size):
        live.add(data[at : at + size], final=True)
    assert screen.shown() == rows


@pytest.mark.parametrize(("data", "drawn"), [(b"a\r", "a␍"), (b"a\xe6\xbc", "a\ufffd\ufffd")])
def test_what_waits_for_more_bytes_is_drawn_at_the_end(data, drawn):
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9)
    live.add(data, final=True)
    assert screen.shown() == ["a"]
    live.close()
    assert screen.shown() == [drawn]
    assert screen.written[-1].endswith(b"\x1b[0m")
    live.close()
    assert len(screen.written) == 2, "closed once"


def test_appended_text_is_all_that_is_written():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9)
    live.add(b"one ", final=True)
    live.add(b"two", final=False)
    live.add(b" three", final=False)
    assert written(screen) == [b"one ", b"\x1b[0;2mtwo\x1b[0m", b"\x1b[0;2m three\x1b[0m"]
    live.settle(0)
    live.settle(4)
    live.retract(13)
    assert written(screen) == [], "nothing has changed"


def test_only_rows_that_change_are_written_and_nothing_is_cleared_for_a_style():
    screen = Screen(4, 9)
    live = LiveText(screen.write, lambda: 4, lambda: 9)
    live.add(b"abcdefghij", final=False)
    live.settle(4)
    live.settle(8)
    assert written(screen)[1:] == [b"\x1b[2A\rabcd\x1b[0;2mefghij\x1b[0m", b"\x1b[1A\refgh\x1b[0;2mij\x1b[0m"]
    live.slip(8, 1)
    live.retract(9)
    assert written(screen) == [
        b"\r\x1b[0;4;31mi\x1b[0;2mj\x1b[0m",
        b"\r\x1b[0;4;31mi\x1b[J\x1b[0m",
    ]


def test_lines_that_are_final_are_not_touched_by_a_new_width():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: screen.width, lambda: 9)
    live.add(b"one\ntwo\n", final=True)
    live.add(b"three", final=False)
    screen.resize(4, 9)
    written(screen)
    live.add(b" four", final=False)
    assert written(screen) == [b"\x1b[1A\r\x1b[J\x1b[0;2mthree four\x1b[0m"]
    assert screen.shown() == ["one", "two", "thre", "e fo", "ur"]


def test_without_color_there_are_no_styles_and_text_is_still_retracted():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9, color=False)
    live.add(b"one two", final=False)
    live.slip(0, 3)
    live.settle(3)
    live.retract(4)
    live.close()
    assert screen.written == [b"one two", b"\r\x1b[Jone "]


def test_a_slip_may_be_known_before_it_is_shown_and_goes_with_what_is_retracted():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9)
    live.slip(1, 2)
    live.add(b"abcd", final=False)
    styles = [style for _, style in screen.lines[0].cells()]
    assert styles == ["2", "31;4", "31;4", "2"]
    live.retract(2)
    live.add(b"xyz", final=True)
    assert screen.lines[0].cells() == [("a", ""), ("b", "31;4"), ("x", ""), ("y", ""), ("z", "")]


def test_a_slip_stays_marked_when_the_lines_above_are_forgotten():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9)
    live.add(b"one\ntwo three", final=False)
    live.slip(4, 3)
    live.settle(5)
    live.settle(9)
    assert [style for _, style in screen.lines[1].cells()] == ["31;4"] * 3 + ["", ""] + ["2"] * 4


def test_text_that_is_final_cannot_be_retracted():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9)
    live.add(b"abcd", final=False)
    live.settle(2)
    with pytest.raises(ValueError, match="before byte 2 is final"):
        live.retract(1)
    assert screen.shown() == ["abcd"]


def test_rows_that_have_scrolled_off_stay_as_they_are():
    screen = Screen(4, 4)
    live = LiveText(screen.write, lambda: 4, lambda: 4)
    live.add(b"aaaabbbbccccddddeeee", final=False)
    live.settle(20)
    assert [line.cells()[0][1] for line in screen.lines] == ["2", "2", "", "", ""]


def test_where_the_beginning_of_what_is_retracted_has_scrolled_off_the_rest_is_drawn_once_more():
    screen = Screen(4, 4)
    live = LiveText(screen.write, lambda: 4, lambda: 4)
    live.add(b"aaaabbbbccccddddeeee", final=False)
    live.retract(6)
    live.add(b"xx", final=True)
    assert screen.shown() == ["aaaa", "bbbb", "aaaa", "bbxx"]


def test_a_text_taller_than_the_screen_at_a_new_width_is_drawn_as_far_as_it_is_reached():
    screen = Screen(4, 4)
    live = LiveText(screen.write, lambda: screen.width, lambda: 4)
    live.add(b"aaaabbbbccccddddeeee", final=False)
    screen.resize(3, 4)
    written(screen)
    live.settle(0)
    assert written(screen) == [b"\x1b[2A\r\x1b[J\x1b[0;2mddddeeee\x1b[0m"]


def test_text_that_is_cut_above_the_screen_at_a_new_width_is_drawn_once_more():
    screen = Screen(5, 2)
    live = LiveText(screen.write, lambda: screen.width, lambda: screen.height)
    live.add(b"aaabbccccdddd", final=False)
    screen.resize(4, 9)
    live.retract(5)
    assert screen.shown()[-2:] == ["aaab", "b"]


def test_copied_text_has_its_own_line_breaks_only():
    screen = Screen(5, 9)
    live = LiveText(screen.write, lambda: 5, lambda: 9)
    text = "one two 字字字 three\nfour\n"
    for at, byte in enumerate(text.encode()):
        live.add(bytes([byte]), final=False)
        live.settle(at - 6)
    assert screen.copied() == text


def test_a_line_without_end_is_broken_now_and_then(monkeypatch):
    monkeypatch.setattr(live_text, "LONGEST_LINE", 8)
    screen = Screen(4, 9)
    live = LiveText(screen.write, lambda: screen.width, lambda: 9)
    for _ in range(20):
        live.add(b"x", final=True)
    assert screen.copied() == "x" * 8 + "\n" + "x" * 8 + "\n" + "x" * 4
    screen.resize(5, 9)
    written(screen)
    live.add(b"x", final=True)
    assert written(screen) == [b"\r\x1b[Jxxxxx"], "only the last piece is still known"


def test_combining_marks_without_end_are_many_cells():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9)
    live.add("\u0301".encode() * 64, final=True)
    assert [len(text) for text, _ in screen.lines[0].cells()] == [16, 16, 16, 16, 5]
    assert screen.shown()[0].count("\u0301") == 64


@pytest.mark.parametrize(
    ("width", "height", "rows", "styles"),
    [(0, 0, ["one", "字b"], ["", ""]), (1, 1, ["o", "n", "e", "\ufffd", "b"], ["2", "2", "2", "2", ""])],
)
def test_a_size_that_is_not_known_or_next_to_none(width, height, rows, styles):
    screen = Screen(width or 80, height or 24)
    live = LiveText(screen.write, lambda: width, lambda: height)
    live.add("one\n字b".encode(), final=False)
    live.settle(8)
    assert screen.shown() == rows
    assert [line.cells()[0][1] for line in screen.lines] == styles


def test_what_is_settled_before_it_is_shown_is_final():
    screen = Screen(9, 9)
    live = LiveText(screen.write, lambda: 9, lambda: 9)
    live.settle(3)
    live.add(b"a", final=True)
    live.add(b"bcd", final=False)
    assert [style for _, style in screen.lines[0].cells()] == ["", "", "", "2"]


@pytest.mark.parametrize("before", [[], [6]])
def test_rows_that_have_scrolled_off_stay_so_where_a_higher_window_is_not_filled_from_above(before):
    screen = Screen(4, 3, reflows=False)
    live = LiveText(screen.write, lambda: 4, lambda: screen.height, reflows=False)
    live.add(b"x\naaaabbbbccccdddd", final=False)
    for offset in before:
        live.settle(offset)
    screen.resize(4, 9)
    live.settle(18)
    assert screen.shown() == ["x", "aaaa", "bbbb", "cccc", "dddd"]
    assert [line.cells()[0][1] for line in screen.lines] == ["2", "2", "2", "", ""]


# ---------------------------------------------------------------- the terminal itself


def test_the_terminal_waits_behind_a_full_row_and_scrolls():
    screen = Screen(3, 2)
    screen.write(b"abc")
    assert (screen.row, screen.column, screen.full) == (0, 2, True)
    screen.write(b"\r\ndef")
    screen.write(b"g")
    assert (screen.shown(), screen.copied(), screen.top) == (["abc", "def", "g"], "abc\ndefg", 1)
    screen.write(b"\x1b[9A\r\x1b[0;2mx\x1b[0m")
    assert (screen.shown(), screen.lines[1].cells()[0]) == (["abc", "xef", "g"], ("x", "2"))
    screen.write(b"\r\x1b[J")
    assert screen.shown() == ["abc", ""]


def test_the_terminal_refuses_to_be_steered():
    for data in (b"\x07", b"\x1b", b"\xc2\x9b", b"\t", b"\x1b[2K", b"abc\x1b[J"):
        with pytest.raises(AssertionError):
            Screen(3, 2).write(data)


def test_the_terminal_moves_rows_with_its_width_or_cuts_them():
    screens = [Screen(4, 9, reflows) for reflows in (True, False)]
    for screen in screens:
        screen.write("ab字de\r\nf".encode())
        screen.resize(3, 9)
    assert screens[0].shown() == ["ab", "字d", "e", "f"]
    assert [screens[1].lines[0].columns[2:], screens[1].lines[1].text] == [[("字", "")], "de"]
