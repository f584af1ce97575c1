"""GGUF files of a tiny Llama, written by the gguf package in milliseconds."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from grimboost.adapters.vocabulary import gpt2_alphabet

PIECES = [*gpt2_alphabet(), "ab", "<|endoftext|>", "<|end|>"]
START, END = len(PIECES) - 2, len(PIECES) - 1
SHAPES = {"token_embd.weight": (len(PIECES), 64), "output_norm.weight": (64,)} | {
    f"blk.{layer}.{name}.weight": shape
    for layer in range(2)
    for name, shape in {
        "attn_q": (64, 64),
        "attn_k": (32, 64),
        "attn_v": (32, 64),
        "attn_output": (64, 64),
        "ffn_gate": (96, 64),
        "ffn_up": (96, 64),
        "ffn_down": (64, 96),
        "attn_norm": (64,),
        "ffn_norm": (64,),
    }.items()
}


def write_gguf(
    file: Path,
    architecture: str = "llama",
    shapes: dict[str, tuple[int, ...]] = SHAPES,
    scaling: str | None = None,
    seed: int = 0,
    kinds: Callable[[str], Kind] = lambda name: Kind.Q4_1 if "_q." in name else Kind.F32,
    heads: tuple[int, int] = (2, 1),
) -> Path:
    """A Llama of two layers with a byte-level vocabulary; `kinds` says which weights are quantized, and how."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(heads[0])
    writer.add_head_count_kv(heads[1])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(64 // heads[0])
    if scaling:
        writer.add_string("llama.rope.scaling.type", scaling)
    writer.add_vocab_size(len(PIECES))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(PIECES)
    writer.add_token_types([1] * (len(PIECES) - 2) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)
    writer.add_eot_token_id(END)
    writer.add_eom_token_id(START)
    numbers = np.random.default_rng(seed)
    for name, shape in shapes.items():
        values = numbers.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
        writer.add_tensor(name, gguf.quantize(values, kinds(name)), raw_dtype=kinds(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
