"""What tests of adapters and cases share: small vocabularies, tokenizers and targets, made in milliseconds.

Nothing here is random from run to run, and nothing is fetched.
"""

import functools
import json
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from grimboost.adapters.eager_target import EagerTarget
from grimboost.adapters.scripted_target import ScriptedTarget
from grimboost.adapters.target import Precision, Target
from grimboost.adapters.vocabulary import Vocabulary
from grimboost.loading import LoadedTarget
from grimboost.stages.configuration import CostCurve

WORDS = (b" the", b" quick", b" fox", b" thank", b" th", b"ank", b" ha", b" a", b" '", b"s", b"\n", b"  ", b"x")
BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), *WORDS, None])
"""Single bytes, some words, and one control token at the end."""
END = len(BYTES) - 1
DRAFTING_PAYS = CostCurve((1, 2, 4, 8, 16), (20.0, 20.0, 20.0, 20.0, 20.0))

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and then it thanks the dog; they'd have 1234 reasons to.\n"
    "Grüße aus Köln! Ça va? Здравствуй, мир.  Два пробела.\n"
    "中文字符和日本語のテキスト。السلام عليكم 🍂🙂 done.\n\n"
    "def add(a, b):\n    return a + b  # it's 42, isn't it?\n"
    "She said: \"I'll thank them\", and that's that. Thank you, thank you, thanks!\n"
)


SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one head each": {"heads": 4, "kv_heads": 4, "layers": 3},
    "one kv head": {"heads": 8, "kv_heads": 1, "head_dim": 32, "bias": True},
    "wide heads": {"heads": 2, "kv_heads": 1, "head_dim": 64, "layers": 4},
    "padding rows": {"rows": len(BYTES) + 51},
    "odd sizes": {"heads": 4, "kv_heads": 4, "head_dim": 20, "mlp": 100},
}
"""Arguments of `tiny_llama`."""


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two threads that wait for each other make tiny matrices no faster, and on a busy machine far slower."""
    before = torch.get_num_threads()
    if not request.node.get_closest_marker("model"):
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_llama(
    precision: Precision = "fp32",
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    mlp: int = 128,
    layers: int = 2,
    bias: bool = False,
    rows: int = len(BYTES),
    context: int = 640,
    seed: int = 0,
) -> LlamaForCausalLM:
    """Random weights, hidden size 64. `rows` are those of the embedding."""
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=64,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context,
        attention_bias=bias,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).to({"fp32": torch.float32, "bf16": torch.bfloat16}[precision])


def tiny_target(precision: Precision = "fp32", exact: bool = True, **shape: Any) -> EagerTarget:
    """An eager target over `tiny_llama`."""
    return EagerTarget(tiny_llama(precision, **shape), BYTES, "tiny", precision, exact)


def noise_logits(size: int = len(BYTES), spread: float = 3.0) -> Callable[[Sequence[int]], NDArray[np.float32]]:
    """Logits that look random and are a function of the prefix."""

    @functools.lru_cache(4096)
    def of(key: bytes) -> NDArray[np.float32]:
        noise = np.random.Generator(np.random.Philox(zlib.crc32(key))).normal(0.0, spread, size)
        return noise.astype(np.float32)

    return lambda prefix: of(array("l", prefix).tobytes())


def noise_target(context: int = 640, **facts: Any) -> ScriptedTarget:
    """A scripted target that chooses from `noise_logits`."""
    return ScriptedTarget(BYTES, logits=noise_logits(), context_limit=context, **facts)


def loaded(target: Target, *ends: int) -> LoadedTarget:
    """What an engine needs, with a cost curve under which drafting pays."""
    return LoadedTarget(target, DRAFTING_PAYS, end_ids={id: ["test"] for id in ends})


@functools.cache
def byte_level_json(size: int = 480) -> str:
    """A byte-level BPE trained on `CORPUS`, with two control tokens and one added word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    tokenizer.add_tokens(["<tool>"])
    return str(tokenizer.to_str())


@functools.cache
def sentencepiece_json() -> str:
    """SentencePiece's shape as converted Llama files have it: byte fallback, a dummy prefix, Fuse and Strip."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges: list[tuple[str, str]] = []
    words = ["▁t", "▁h", "th", "ha", "an", "nk", "▁th", "ank", "▁thank", "▁ha", "he", "▁the", "▁▁"]
    pieces += [*"▁thankeso\u4e2d", *words]
    for word in words:
        cut = next(at for at in range(1, len(word)) if word[:at] in pieces and word[at:] in pieces)
        merges.append((word[:cut], word[cut:]))
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return str(tokenizer.to_str())


def changed(tokenizer_json: str, **parts: Any) -> str:
    """The same tokenizer file with some of its parts replaced."""
    return json.dumps(json.loads(tokenizer_json) | parts)
