"""What a caller may ask of one generation, checked before any work is done. It knows no model."""

import secrets
from typing import Literal, TypedDict, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grimboost.errors import MisuseError
from grimboost.stages.sampling_rule import SamplingRule

DEFAULT_MAX_NEW_TOKENS = 512


class Parameters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One generation. Budgets are upper bounds; without any, `DEFAULT_MAX_NEW_TOKENS` applies."""

    mode: Literal["strict"] = "strict"
    max_new_tokens: int | None = None
    max_new_bytes: int | None = None
    """Output bytes; the cut falls between target tokens, so the last bytes may stay unused."""
    min_new_tokens: int = 0
    """End-of-sequence ids cannot be chosen before so many tokens."""
    stop: tuple[str | bytes, ...] = ()
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """Absent: drawn once when sampling, and written to the log."""
    chat_template: Literal["native", "none"] = "native"
    system: str | None = None

    def checked(self) -> "Parameters":
        """Raise `MisuseError` for the first thing that cannot be; else the same with seed and budget resolved."""
        for name in ("max_new_tokens", "max_new_bytes", "min_new_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**31:
                raise MisuseError(f"{name} is {value}; it has to be between 0 and {2**31 - 1}")
        for text in (self.system, *self.stop):
            if isinstance(text, str) and any(0xD800 <= ord(character) < 0xE000 for character in text):
                raise MisuseError(f"{text!r} is no valid text: it holds a lone surrogate")
        if any(not stop for stop in self.stop):
            raise MisuseError("an empty stop string would end every generation at once")
        if self.system is not None and self.chat_template == "none":
            raise MisuseError("system needs a chat template; with chat_template 'none' put it into the prompt")
        seed = secrets.randbits(63) if self.seed is None and self.temperature > 0 else (self.seed or 0)
        budget = self.max_new_tokens
        if budget is None:
            budget = DEFAULT_MAX_NEW_TOKENS if self.max_new_bytes is None else self.max_new_bytes
        resolved = replace(self, seed=seed, max_new_tokens=budget)
        resolved.rule((), 0).check()
        return resolved

    def rule(self, end_ids: tuple[int, ...], prompt_tokens: int) -> SamplingRule:
        """The target's rule of choice for a prompt of that many tokens."""
        return SamplingRule(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed or 0,
            suppressed=end_ids if self.min_new_tokens else (),
            suppressed_until=prompt_tokens + self.min_new_tokens if self.min_new_tokens else 0,
        )

    @property
    def stop_bytes(self) -> tuple[bytes, ...]:
        """Stop strings as output bytes."""
        return tuple(stop.encode() if isinstance(stop, str) else stop for stop in self.stop)


class Options(TypedDict, total=False):
    """The fields of `Parameters` as keyword arguments."""

    mode: Literal["strict"]
    max_new_tokens: int | None
    max_new_bytes: int | None
    min_new_tokens: int
    stop: tuple[str | bytes, ...]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    chat_template: Literal["native", "none"]
    system: str | None


def parameters(given: Parameters | None, options: Options) -> Parameters:
    """Merge keyword options into parameters and check the result."""
    unknown = set(options) - set(Parameters.__struct_fields__)
    if unknown:
        raise MisuseError(
            f"unknown option {sorted(unknown)[0]!r}; known are {', '.join(Parameters.__struct_fields__)}"
        )
    fields = msgspec.structs.asdict(given or Parameters()) | dict(options)
    stop = fields.pop("stop")
    if not isinstance(stop, list | tuple) or not all(isinstance(one, str | bytes) for one in stop):
        raise MisuseError(f"stop is {stop!r}; it has to be a list or tuple of str or bytes")
    for name, value in fields.items():
        try:
            msgspec.convert(value, _TYPES[name])
        except msgspec.ValidationError as error:
            raise MisuseError(f"{name} is {value!r}: {error}") from None
    return Parameters(**fields, stop=tuple(stop)).checked()


_TYPES = get_type_hints(Parameters)
