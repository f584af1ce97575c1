"""Packed models in the cache, made once per model and precision, and the choice that `auto` stands for.

::

    <root>/packed/<12 digits of the model's digest>-<precision>-<version>.pack
    <root>/packed/<12 digits of the model's digest>-<version>.json    what `auto` measured

A file appears whole or not at all; where the cache cannot be written, a model is packed at each start. `auto`
is the fastest precision whose perplexity on a fixed text is within 2% of the unrounded weights', measured once
per machine. It knows no slots.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from grimboost.adapters import packed_model
from grimboost.adapters.llama_shape import read_shape
from grimboost.adapters.packed_model import Floats, PackedModel
from grimboost.adapters.packed_runner import Cache, Row, Runner, usable_processors
from grimboost.adapters.perplexity import perplexity, sample_ids
from grimboost.adapters.quantized_blocks import read_blocks
from grimboost.adapters.target import Precision
from grimboost.adapters.target_tokenizer import load_tokenizer
from grimboost.errors import ModelReferenceError
from grimboost.model_references import Progress, ResolvedModel

TOLERANCE = 1.02
"""Largest perplexity that `auto` takes, over that of the unrounded weights."""

CANDIDATES: tuple[Precision, ...] = ("fp32", "int4", "int8", "bf16")
"""What `auto` compares; the first is what the others are held against."""


class Measured(Struct, frozen=True):
    """One precision of one model on this machine. milliseconds: of a pass over one row."""

    perplexity: float
    milliseconds: float


class PackedStore:
    """The packed models of one cache root."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "packed"

    def obtain(
        self, resolved: ResolvedModel, precision: Precision, progress: Progress | None = None
    ) -> PackedModel:
        """The model packed for a precision. Raises `ModelReferenceError` if it is none that can be packed."""
        shape = read_shape(resolved.directory)
        file = self._folder / f"{resolved.digest[:12]}-{precision}-{packed_model.VERSION}.pack"
        if resolved.digest:
            with suppress(ModelReferenceError):
                kept = packed_model.load(file)
                if kept.shape == shape:
                    return kept
        model = _pack(resolved, _tensors(resolved), precision, progress)
        return self._kept(model, file) if resolved.digest else model

    def fastest(self, resolved: ResolvedModel, progress: Progress | None = None) -> Precision:
        """The precision that `auto` stands for. Measured at the first call, which takes up to a minute."""
        return fastest(self.measured(resolved, progress))

    def measured(self, resolved: ResolvedModel, progress: Progress | None = None) -> dict[Precision, Measured]:
        """Perplexity and speed of each candidate, kept beside the packed models."""
        file = self._folder / f"{resolved.digest[:12]}-{packed_model.VERSION}.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[Precision, Measured])
        except (OSError, msgspec.DecodeError):
            pass
        tokenizer, tensors = load_tokenizer(resolved.directory), _tensors(resolved)
        ids = sample_ids(tokenizer, SAMPLE_TOKENS)
        found: dict[Precision, Measured] = {}
        for place, precision in enumerate(CANDIDATES):
            if progress:
                progress("comparing precisions", place, len(CANDIDATES))
            model = _pack(resolved, tensors, precision)
            found[precision] = _measure(model, len(tokenizer.vocabulary), ids)
        if resolved.digest:
            self._replace(file, lambda part: part.write_bytes(msgspec.json.encode(found)))
        return found

    def _kept(self, model: PackedModel, file: Path) -> PackedModel:
        if not self._replace(file, lambda part: packed_model.save(model, part)):
            return model
        for other in file.parent.glob(f"{file.name.rpartition('-')[0]}-*.pack"):
            if other != file:  # of another version of the layout: nobody reads it any more
                with suppress(OSError):
                    other.unlink()
        return packed_model.load(file)

    @staticmethod
    def _replace(file: Path, write: Callable[[Path], object]) -> bool:
        """Put a file in place in one step; False where that cannot be."""
        part = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write(part)
            part.replace(file)
        except OSError:
            with suppress(OSError):
                part.unlink()
            return False
        return True


def fastest(measured: dict[Precision, Measured]) -> Precision:
    """The fastest precision whose perplexity is near enough to the first candidate's."""
    bound = TOLERANCE * measured[CANDIDATES[0]].perplexity
    near = {name: one for name, one in measured.items() if one.perplexity <= bound}
    return min(near or measured, key=lambda name: measured[name].milliseconds)


def _tensors(resolved: ResolvedModel) -> dict[str, Floats]:
    """The model's unpacked weights. Imports torch."""
    from grimboost.adapters.weights import weight_files

    try:
        return packed_model.read_tensors(weight_files(resolved.directory))
    except (OSError, ValueError, KeyError) as error:
        raise ModelReferenceError(f"cannot read the weights in {resolved.directory}: {error}") from error


def _pack(
    resolved: ResolvedModel,
    tensors: dict[str, Floats],
    precision: Precision,
    progress: Progress | None = None,
) -> PackedModel:
    def report(done: int, total: int) -> None:
        if progress:
            progress("packing weights", done, total)

    blocks = read_blocks(resolved.gguf) if resolved.gguf and precision in {"int8", "int4"} else {}
    return packed_model.pack_model(read_shape(resolved.directory), tensors, blocks, precision, report)


def _measure(model: PackedModel, vocabulary: int, ids: Sequence[int]) -> Measured:
    runner = Runner(model, vocabulary, usable_processors())
    value = perplexity(runner, model, ids)
    cache = Cache(model)
    cache.reserve(64)
    times = []
    for position in range(24):
        begin = time.perf_counter()
        runner.run([Row(0, position, cache, True)])
        times.append(time.perf_counter() - begin)
    runner.close()
    return Measured(value, 1000.0 * sorted(times)[len(times) // 4])


SAMPLE_TOKENS = 1024
"""Tokens of the text that `auto` compares on."""
