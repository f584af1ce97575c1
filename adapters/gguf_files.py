"""GGUF files: the facts in their header, and their conversion into a safetensors directory by transformers.

It knows nothing of references and caches. Everything it says comes from the one file: a `tokenizer.json` or
`config.json` that lies beside it is not looked at, so the result depends on the bytes of the file alone.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from grimboost.errors import ModelReferenceError

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_LLAMA_TENSOR = re.compile(
    r"(token_embd|output|output_norm|blk\.\d+\.(attn_(norm|q|k|v|output)|ffn_(norm|gate|up|down)))\.weight"
)


class GgufFacts(Struct, frozen=True):
    """What a header says. `end_ids`: id -> the entries that name it an end, such as "gguf:eos_token_id"."""

    architecture: str
    end_ids: dict[int, list[str]]
    lost: list[str]
    """What transformers would drop without a word, of a file whose architecture is llama."""


class Conversion(Struct, frozen=True):
    """What is worth keeping of a conversion: ids that end a text, and the versions it was made with."""

    end_ids: dict[int, list[str]]
    versions: dict[str, str]


def gguf_files(directory: Path) -> list[Path]:
    """The GGUF files of a directory, by name."""
    return sorted(file for file in directory.iterdir() if file.suffix.lower() == ".gguf" and file.is_file())


def read_facts(file: Path) -> GgufFacts:
    """Read the header, and check that the file is as long as it says. Seconds, for a large vocabulary."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        architecture = reader.fields["general.architecture"].contents()
    except Exception as error:  # the reader indexes into what is there, so a short file may raise anything
        raise ModelReferenceError(
            f"{file} is not a whole GGUF file: {_reason(error)}. It may be cut short: fetch it again"
        ) from error
    ends = {key: reader.fields.get(f"tokenizer.ggml.{key}") for key in _END_KEYS}
    end_ids: dict[int, list[str]] = {}
    for key, field in ends.items():
        if field is not None:
            end_ids.setdefault(int(field.contents()), []).append(f"gguf:{key}")
    return GgufFacts(architecture=architecture, end_ids=end_ids, lost=_lost(reader, architecture))


def convert(
    file: Path, destination: Path, architectures: Collection[str], report: Callable[[int, int], None]
) -> Conversion:
    """Write `destination`: config.json, model.safetensors in fp32, tokenizer.json.

    Refuses, before the work, other architectures and what would not survive it. `report(done, total)` counts
    tensors. Scratch files of the conversion go beside `destination`.
    """
    facts = read_facts(file)
    if facts.architecture not in architectures:
        known = ", ".join(architectures)
        raise ModelReferenceError(f"{file} is not supported: architecture {facts.architecture!r}, not {known}")
    if facts.lost:
        raise ModelReferenceError(
            f"{file} is not supported: the conversion would drop {', '.join(facts.lost[:4])}, and the model "
            "would not be the same without. Give the model as safetensors"
        )
    report(0, 1)
    return Conversion(facts.end_ids, _converted(file, destination, report))


def _converted(file: Path, destination: Path, report: Callable[[int, int], None]) -> dict[str, str]:
    import torch
    import transformers

    # Alone in its directory: transformers would otherwise mix in the configuration files beside it.
    alone = destination.with_name("alone")
    alone.mkdir()
    (alone / "model.gguf").symlink_to(file.resolve())
    try:
        with _bars_as_reports(report):
            _convert(alone, destination)
    except ModelReferenceError as error:
        raise ModelReferenceError(f"{file}: {error}") from None
    except Exception as error:  # whatever transformers or the disk raises, the file did not become a model
        raise ModelReferenceError(f"{file} could not be converted: {_reason(error)}") from error
    return {"transformers": transformers.__version__, "torch": str(torch.__version__)}


def _convert(source: Path, destination: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source), gguf_file="model.gguf")
    model, loading = AutoModelForCausalLM.from_pretrained(
        str(source), gguf_file="model.gguf", dtype=torch.float32, output_loading_info=True
    )
    if loading["missing_keys"]:  # transformers fills them with random numbers and goes on
        raise ModelReferenceError(f"it has no weights for {', '.join(sorted(loading['missing_keys'])[:4])}")
    _forget_source(model)
    model.save_pretrained(str(destination))
    _restore_pre_tokenizer(tokenizer, source / "model.gguf")
    tokenizer.save_pretrained(str(destination))
    # safetensors makes its files private, whatever the umask: a cache filled as root would be unreadable.
    for weights in destination.glob("*.safetensors"):
        shutil.copymode(destination / "config.json", weights)


def _restore_pre_tokenizer(tokenizer: Any, file: Path) -> None:
    """Split digits as the file says (`tokenizer.ggml.pre`); transformers 5.24 drops that for this name.

    Without it, the target would read numbered lists and code in tokens that it has never been trained on.
    """
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    field = GGUFReader(str(file)).fields.get("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        split = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(split)


def _forget_source(model: Any) -> None:
    """Take off the marks of quantization (with them, `save_pretrained` fails) and the path it came from."""
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model.is_quantized = False
    model.config._name_or_path = ""


def _lost(reader: Any, architecture: str) -> list[str]:
    """Tensors and settings of a llama file that have no place in transformers' Llama.

    Scaled rotary embeddings (Llama 3.1 and later), experts (Mixtral calls itself llama) and biases: the model
    would load without them and talk differently.
    """
    if architecture != "llama":
        return []
    tensors = [tensor.name for tensor in reader.tensors if not _LLAMA_TENSOR.fullmatch(tensor.name)]
    scaling = reader.fields.get("llama.rope.scaling.type")
    settings = [] if scaling is None or scaling.contents() == "none" else ["llama.rope.scaling.type"]
    return [*tensors, *settings]


@contextmanager
def _bars_as_reports(report: Callable[[int, int], None]) -> Iterator[None]:
    """Turn the progress bar of the conversion into reports, and keep all bars off stderr."""
    from transformers import modeling_gguf_pytorch_utils as reader_module
    from transformers.utils import logging

    def counted(items: Iterable[Any], **_: Any) -> Iterator[Any]:
        tensors = list(items)
        for done, tensor in enumerate(tensors):
            report(done, len(tensors))
            yield tensor
        report(len(tensors), len(tensors))

    shown = logging.is_progress_bar_enabled()
    bar = reader_module.tqdm  # the one bar that does not ask whether bars are wanted
    logging.disable_progress_bar()
    reader_module.tqdm = counted
    try:
        yield
    finally:
        reader_module.tqdm = bar
        if shown:
            logging.enable_progress_bar()


def _reason(error: Exception) -> str:
    """The kind of an error and its first line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
