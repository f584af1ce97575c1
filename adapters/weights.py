"""Safetensors -> a Llama model, read and packed in a thread of its own while the process still imports.

Importing transformers is bound to the interpreter, reading and packing weights is not, so doing both at once
saves a second of every start. The thread ends with the work: OpenMP keeps a pool per thread that computed, and
a pool that stays would slow every pass (see `grimboost.worker`). It knows nothing of slots or vocabularies.
"""

import json
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grimboost.errors import ModelReferenceError

DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Of weights and arithmetic, by the precision's name."""

PACKED_FOR_ROWS = 8
"""The row count that oneDNN lays packed weights out for."""


class ReadWeights:
    """All tensors of a model directory by name, in `dtype`; with `pack`, linear ones also in oneDNN's layout."""

    def __init__(self, directory: Path, dtype: torch.dtype, pack: bool) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.packed: dict[str, Tensor] = {}
        self._directory, self._dtype, self._pack = directory, dtype, pack
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="grimboost weights", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end. Raises `ModelReferenceError` if the files cannot be used."""
        self._thread.join()
        if self._error is not None:
            raise ModelReferenceError(
                f"cannot read the weights in {self._directory}: {self._error}"
            ) from self._error

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._read()
                if self._pack:
                    self._pack_linears()
        except (OSError, ValueError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
            self._error = error

    def _read(self) -> None:
        for file in weight_files(self._directory):
            for name, tensor in load_file(file).items():
                if not name.endswith("rotary_emb.inv_freq"):  # in old files; computed, not loaded
                    self.tensors[name] = tensor.to(self._dtype)

    def _pack_linears(self) -> None:
        """Every matrix but the embedding is a linear layer's weight in this family."""
        for name, tensor in self.tensors.items():
            if tensor.dim() == 2 and name != "model.embed_tokens.weight":
                self.packed[name] = packed(tensor)
        if "lm_head.weight" not in self.tensors and "model.embed_tokens.weight" in self.tensors:
            self.packed["lm_head.weight"] = packed(self.tensors["model.embed_tokens.weight"])


def weight_files(directory: Path) -> list[Path]:
    """What transformers would read: model.safetensors, else the shards that its index names; no stray files."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ValueError("there is neither model.safetensors nor model.safetensors.index.json")
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [directory / name for name in sorted(set(names))]


def packed(weight: Tensor) -> Tensor:
    """oneDNN's own layout of a linear layer's weight [out, in]."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
    return result


def build_llama(directory: Path, weights: ReadWeights) -> Any:
    """A `LlamaForCausalLM` over tensors that have been read. Raises `ModelReferenceError` if they do not fit."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    try:
        settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        if settings.get("quantization_config"):
            raise ValueError("it is quantized; give unquantized safetensors")
        config = LlamaConfig.from_dict(settings)
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        weights.join()
        tensors = dict(weights.tensors)
        if config.tie_word_embeddings and "lm_head.weight" not in tensors:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        model.load_state_dict(tensors, strict=True, assign=True)
        model.model.rotary_emb = LlamaRotaryEmbedding(config)  # its buffer is computed, never loaded
        model.generation_config = GenerationConfig.from_model_config(config)
    except ModelReferenceError:
        raise
    except (
        Exception
    ) as error:  # a configuration may be wrong in any way, transformers' checks raise what they like
        reason = str(error).strip().partition("\n")[0]
        raise ModelReferenceError(f"cannot load the model in {directory}: {reason}") from error
    return model
