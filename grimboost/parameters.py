"""What a caller may ask of one generation, checked before any work is done. It knows no model."""

import secrets
from typing import Literal, TypedDict, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grimboost.errors import MisuseError
from grimboost.stages.certificate import Terms
from grimboost.stages.sampling_rule import SamplingRule

DEFAULT_MAX_NEW_TOKENS = 512
DEFAULT_THRESHOLD = 0.7
LONGEST_DOMAIN = 100


class Parameters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One generation. Budgets are upper bounds; without any, `DEFAULT_MAX_NEW_TOKENS` applies."""

    mode: Literal["strict", "streaming"] = "strict"
    """Streaming shows confident drafts at once and has the target check them afterwards. The fields from
    `release` on are for this mode."""
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
    release: Literal["never", "certified", "always"] = "certified"
    """Whether drafts may be shown unchecked: never, while a certificate says that slips are rare, or always (for
    experiments)."""
    threshold: float | None = None
    """Least calibrated confidence of what is shown unchecked. Absent: what the certificate allows, or
    `DEFAULT_THRESHOLD` where it is not asked. A certificate can only raise it."""
    anchor_bytes: int = 512
    """Everything shown is verified at least so often."""
    max_unverified_bytes: int = 192
    max_unverified_tokens: int = 64
    doubt_bytes: int = 32
    """After a slip nothing is released for so long; twice as long after each failed repair."""
    max_repairs: int = 2
    """After more failures than these the target goes on by itself for `takeover_tokens`."""
    takeover_tokens: int = 8
    on_slip: Literal["continue", "retract"] = "continue"
    """Shown bytes stand and the target goes on from them, or events take them back: then the final text is that
    of strict mode."""
    finish: Literal["audited", "open"] = "audited"
    """Whether the end waits until all of the output is checked."""
    epsilon: float = 0.001
    """The certificate's bound on the share of released spans that slip."""
    delta: float = 0.05
    """The certificate's chance to be wrong."""
    domain: str = "default"
    """Label of the kind of prompts; evidence is kept for each apart."""

    def checked(self) -> "Parameters":
        """Raise `MisuseError` for the first thing that cannot be; else the same with seed and budget resolved."""
        for name in ("max_new_tokens", "max_new_bytes", "min_new_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**31:
                raise MisuseError(f"{name} is {value}; it has to be between 0 and {2**31 - 1}")
        for text in (self.system, self.domain, *self.stop):
            if isinstance(text, str) and any(0xD800 <= ord(character) < 0xE000 for character in text):
                raise MisuseError(f"{text!r} is no valid text: it holds a lone surrogate")
        self._check_streaming()
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

    def _check_streaming(self) -> None:
        for name, low in (
            ("anchor_bytes", 1),
            ("max_unverified_bytes", 1),
            ("max_unverified_tokens", 1),
            ("doubt_bytes", 0),
            ("max_repairs", 0),
            ("takeover_tokens", 0),
        ):
            value = getattr(self, name)
            if not low <= value < 2**31:
                raise MisuseError(f"{name} is {value}; it has to be between {low} and {2**31 - 1}")
        if self.threshold is not None and not 0.0 <= self.threshold <= 1.0:
            raise MisuseError(f"threshold is {self.threshold}; it has to be between 0 and 1")
        Terms(self.epsilon, self.delta).check()
        if not self.domain or len(self.domain) > LONGEST_DOMAIN or not self.domain.isprintable():
            raise MisuseError(
                f"domain is {self.domain!r}; it has to be 1 to {LONGEST_DOMAIN} printable characters"
            )
        if self.finish == "open" and self.on_slip == "retract":
            raise MisuseError("finish 'open' leaves bytes unchecked, so on_slip 'retract' could not keep its word")
        if self.mode == "strict":
            given = [name for name in STREAMING_ONLY if getattr(self, name) != _DEFAULTS[name]]
            if given:
                raise MisuseError(f"{given[0]} has no meaning in mode 'strict'; choose mode 'streaming'")

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

    mode: Literal["strict", "streaming"]
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
    release: Literal["never", "certified", "always"]
    threshold: float | None
    anchor_bytes: int
    max_unverified_bytes: int
    max_unverified_tokens: int
    doubt_bytes: int
    max_repairs: int
    takeover_tokens: int
    on_slip: Literal["continue", "retract"]
    finish: Literal["audited", "open"]
    epsilon: float
    delta: float
    domain: str


STREAMING_ONLY = Parameters.__struct_fields__[Parameters.__struct_fields__.index("release") :]
"""Fields that have a meaning in streaming mode only."""

_DEFAULTS = msgspec.structs.asdict(Parameters())


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
