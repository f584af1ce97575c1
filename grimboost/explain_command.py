"""`grimboost explain`: the chain behind an output byte or a text, a line for each link, with the time between.

It knows nothing of click.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from grimboost.errors import LogError, MisuseError
from grimboost.explanation import Explainer, Explanation
from grimboost.log import Log
from grimboost.log_output import emit, emit_json, emit_lines, located, note, note_torn, open_log
from grimboost.message_text import Words, counted, milliseconds, reach
from grimboost.output_views import Place, find_text

_SOURCES = {
    "drafted": "drafted, and chosen by the target",
    "target": "the target's own token",
    "slip": "a slip: shown, and not what the target would have chosen",
    "unchecked": "what the target says of it is not in the log",
    "withdrawn": "shown, and taken back",
}


class ExplainOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the command, as given; one of `byte` and `text`."""

    path: Path
    byte: int | None
    text: str | None
    occurrence: int
    as_json: bool


class Found(Struct, frozen=True):
    """What `--json` prints: one explanation for each token that is asked for. `occurrences`: how often the text is
    there."""

    output_bytes: int
    occurrence: int
    occurrences: int
    tokens: tuple[Explanation, ...]


def run_explain(options: ExplainOptions) -> int:
    """Returns the exit status."""
    if (options.byte is None) == (options.text is None):
        raise MisuseError("give --byte or --text, and only one of them")
    if options.text == "":
        raise MisuseError("--text is empty: there is nothing to look for")
    log = open_log(options.path)
    try:
        found = _found(log, options)
    except LogError as error:
        raise located(options.path, error) from error
    if options.as_json:
        emit_json(msgspec.to_builtins(found))
    else:
        _show(found, Words(redacted=log.header.redacted), options.text)
    note_torn(options.path, log)
    return 0


def _found(log: Log, options: ExplainOptions) -> Found:
    explainer = Explainer(log)
    size = len(explainer.output)
    if options.byte is not None:
        return Found(size, 1, 1, (explainer.explain(options.byte),))
    text = str(options.text).encode(errors="surrogateescape")
    places = _places(log, text, options.text, size)
    if not 1 <= options.occurrence <= len(places):
        raise MisuseError(f"the text is there {_times(len(places))}; --occurrence {options.occurrence} is not")
    tokens = tokens_from(explainer, places[options.occurrence - 1], len(text))
    return Found(size, options.occurrence, len(places), tuple(tokens))


def _places(log: Log, text: bytes, shown: str | None, size: int) -> list[Place]:
    if log.header.redacted:
        raise LogError("this log is redacted: it holds no text to look for; use --byte")
    places = find_text(log, text)
    if not places:
        what = Words().quote(text)
        raise MisuseError(f"{what} is neither in the output of {counted(size, 'byte')} nor in what was taken back")
    return places


def tokens_from(explainer: Explainer, place: Place, size: int) -> list[Explanation]:
    """One explanation for each token that covers some of `size` bytes from a place on."""
    found: list[Explanation] = []
    at = place.offset
    while at < place.offset + size:
        one = explainer.explain(at, place.withdrawn_at)
        found.append(one)
        end = one.start + len(one.token)
        if at < place.withdrawn_from < end:
            end = place.withdrawn_from  # what stands there now is not what stood behind it
        at = max(at + 1, end)
    return found


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


# ---------------------------------------------------------------- shown


def _show(found: Found, words: Words, text: str | None) -> None:
    for place, one in enumerate(found.tokens):
        if place:
            emit("")
        emit_lines(_lines(one, words))
    if text is not None and found.occurrences > 1:
        note(
            f"the text is there {_times(found.occurrences)}; this is number {found.occurrence}, "
            "--occurrence chooses another"
        )


def _lines(one: Explanation, words: Words) -> Iterator[str]:
    token = f"{words.quote(one.token)} ({reach(one.start, one.start + len(one.token))})"
    yield f"byte {one.offset} of {one.output_bytes}, in {token}: {_SOURCES[one.source]}"
    width = max((len(step.name) for step in one.steps), default=0)
    before: float | None = None
    for step in one.steps:
        gap = "" if before is None else f"+{milliseconds(step.seconds - before)}"
        before = step.seconds
        yield f"{step.seconds:>9.4f}  {gap:>10}  {step.name:<{width}}  {step.kind}: {step.text}"
