"""Streaming mode against strict mode, turn by turn in one engine: what is shown early, what slips, what it costs.

    python -m bench.streaming [--tokens 200] [--precision int4] [--target smollm2-135m] [--classes chat code]
                              [--prompts 3] [--rounds 1] [--thresholds 0.7 0.9 0.95] [--retract 0.7] [--traced 1]
                              [--threads 0] [--offline-transformers] [--json]
    python -m bench.streaming --curve grounded [...]

A turn is one prompt in one round. In it every way writes the same number of tokens greedily (end-of-sequence
ignored), each turn begun by another one: `strict`; `continue T`, streaming that shows drafts of at least that
calibrated confidence, whatever a certificate says, and goes on from them; `retract T`, where the client takes back
what slipped; `never`, streaming that shows nothing unchecked. There is no datastore, so nothing is drafted from
earlier answers. What the drafter and its calibration learn about themselves is kept for each way apart and begins
with nothing. From its first slip on `continue` writes another text, and a text that repeats itself is easy to
draft. One answer is generated at a time; seconds include the prefill.

coverage         output tokens that were shown before the target had checked them, and stand: sums over sums
slips            shown tokens that the target would not have chosen, and their share of all tokens shown early
passes           target passes per 1,000 tokens, and their ratio to strict: sums over sums
tokens/s         and its ratio to strict: sums over sums
first byte       ms; median over turns
gap              ms between two chunks of one answer, which are larger in some ways than in others: its p50 and its
                 p95, each the median over turns, and the ratio of the p50 to that of strict in the same turn, the
                 median of these
lag              bytes shown and not yet final, p50 and p95, each the median over turns
commit           ms until a byte that was shown early is final, p50; median over turns
retracted        bytes taken back per byte of the output: sums over sums

Then, apart from these turns, `strict` and the first `continue` answer `--traced` prompts of each class with a
message log, to see which share of the time drafter and target work at the same moment (`bench.overlap`), and once
more beside a heartbeat: a task that sleeps 5 ms, and how late it wakes.

Checked in every run, with exit status 1 if it does not hold: `retract` and `never` end with exactly strict's ids
and bytes, on the client's screen too; and when the engine has been left, the target itself is fed each output once
more: each place where it chooses otherwise must be a slip that the engine has named, and each slip such a place.
With --offline-transformers (fp32) transformers' own forward is asked the same.

--curve runs one class over more thresholds, and shows coverage against slips. Prints tables for people and, last,
one JSON line for machines; with --json only that line. It has more figures: `as_strict` is the share of bytes
before the first that is not strict's, `disturbed` the largest share of all processors that others took meanwhile.
"""

import argparse
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec

from bench.offline_audit import target_choices, transformers_choices
from bench.overlap import Trace, heartbeat, shares, trace
from bench.prompts import PROMPTS
from bench.streaming_report import IDLE, STRICT, Answer, Turns, Way, check_ends, check_slips, classes, note, show
from bench.turns import Interval
from grimboost import messages as m
from grimboost.adapters.lookup_drafter import LookupDrafter, MatchConfidence
from grimboost.engine import Engine
from grimboost.generation import Generation
from grimboost.loading import PRECISIONS
from grimboost.log import Log
from grimboost.spread import spread

CURVE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
DISTURBED = 0.05


# ---------------------------------------------------------------- contenders


def streaming(name: str, exact: bool = False, **options: Any) -> Way:
    """Its evidence is in a domain of its own."""
    return Way(name, exact, {"mode": "streaming", "domain": name, **options})


def all_ways(thresholds: Iterable[float], retract: float, curve: bool) -> list[Way]:
    """In the order of the table."""
    ways = [Way(STRICT, True)]
    for threshold in dict.fromkeys(thresholds):
        ways.append(streaming(f"continue {threshold:g}", release="always", threshold=threshold))
    if not curve:
        back = {"release": "always", "threshold": retract, "on_slip": "retract"}
        ways += [streaming(f"retract {retract:g}", True, **back), streaming("never", True, release="never")]
    return ways


class Screen:
    """What a client sees that follows the events, from them alone."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.chunks = 0

    def read(self, event: m.ClientEvent) -> None:
        match event:
            case m.Chunk(offset=offset, data=data) | m.Provisional(offset=offset, data=data):
                if offset != len(self.data):
                    raise SystemExit(f"bytes for offset {offset} of a screen with {len(self.data)}")
                self.data += data
                self.chunks += 1
            case m.Retracted(offset=offset):
                del self.data[offset:]


class Bench:
    """An engine, how much to write, and what its drafter has learned in each way."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self.engine = engine
        self._tokens = tokens
        self._memories: dict[str, MatchConfidence] = {}
        self._latest: dict[str, Generation] = {}

    async def answer(self, way: Way, prompt: str, record: Path | None = None) -> Answer:
        """One generation, read to its end."""
        assert isinstance(self.engine.drafter, LookupDrafter)
        self.engine.drafter.confidence = self._memories.setdefault(way.name, MatchConfidence())
        options: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": self._tokens, **way.options}
        screen, interval, begin = Screen(), Interval(os.getpid()), time.perf_counter()
        async with self.engine.generate(prompt, record=record, **options) as generation:
            async for event in generation:
                screen.read(event)
        seconds, result = time.perf_counter() - begin, generation.result
        generation.raise_for_error()
        self._latest[way.name] = generation
        if len(result.token_ids) != options["max_new_tokens"]:
            raise SystemExit(f"{way.name} wrote {len(result.token_ids)} tokens: {result.finish_reason}")
        return Answer(
            generation.request.prompt.prompt_ids,
            result.token_ids,
            result.data,
            bytes(screen.data),
            screen.chunks,
            seconds,
            interval.disturbed() or 0.0,
            result.statistics,
        )

    def calibration_errors(self) -> dict[str, float | None]:
        """Of each way at its end. Ask when the engine has been left: evidence is added behind a generation."""
        return {name: one.result.statistics.calibration_error for name, one in self._latest.items()}

    async def warm(self, ways: list[Way]) -> None:
        """A few tokens each. What is learned from them counts nowhere."""
        for way in ways:
            domain = {"domain": "warm-up"} if way.options else {}
            await self.answer(Way("warm-up", way.exact, way.options | domain | {"max_new_tokens": 8}), "Hello!")
        del self._latest["warm-up"]


# ---------------------------------------------------------------- measuring


async def measure(bench: Bench, ways: list[Way], prompts: list[tuple[str, str]], rounds: int) -> Turns:
    """Every way on every prompt, in turn."""
    turns: Turns = []
    for number in range(rounds):
        for place, (kind, prompt) in enumerate(prompts):
            begin = (place + number) % len(ways)
            answers = {way.name: await bench.answer(way, prompt) for way in ways[begin:] + ways[:begin]}
            turns.append((kind, answers))
            told = ", ".join(brief(way.name, answers[way.name]) for way in ways)
            note(f"{len(turns)}/{rounds * len(prompts)} {kind}, tokens/s: {told}")
    return turns


def brief(name: str, answer: Answer) -> str:
    s = answer.statistics
    text = f"{name} {s.new_tokens / answer.seconds:.0f}"
    text += f" ({s.coverage:.0%}, {s.slip_tokens} slips)" if s.released_tokens else ""
    return text + (f" [others took {answer.disturbed:.0%}]" if answer.disturbed > DISTURBED else "")


async def watch(bench: Bench, ways: list[Way], prompts: list[tuple[str, str]]) -> dict[str, Any]:
    """Class -> way -> overlap and lateness; and the lateness of an event loop on which nothing runs."""
    traces: dict[str, dict[str, list[Trace]]] = {}
    late: dict[str, dict[str, list[float]]] = {}
    for kind, prompt in prompts:
        for way in ways:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "one.grimlog"
                await bench.answer(way, prompt, path)
                found = trace(Log.open(path))
            async with heartbeat() as beats:
                await bench.answer(way, prompt)
            for group in (kind, "all"):
                traces.setdefault(group, {}).setdefault(way.name, []).append(found)
                late.setdefault(group, {}).setdefault(way.name, []).extend(beats)
        note(f"traced {kind}")
    async with heartbeat() as idle:
        await anyio.sleep(1.0)
    # what belongs to all prompts stands last
    overlap = {
        kind: {name: msgspec.to_builtins(shares(ones)) for name, ones in traces[kind].items()}
        for kind in sorted(traces, key=lambda kind: kind == "all")
    }
    lateness = {kind: {name: summary(beats) for name, beats in late[kind].items()} for kind in overlap}
    return {"overlap": overlap, "heartbeat_ms": lateness | {IDLE: {"-": summary(idle)}}}


def summary(late: list[float]) -> dict[str, float]:
    """In milliseconds."""
    found = spread((1000.0 * one, 1.0) for one in late)
    assert found is not None
    return {"p50": found.p50, "p99": found.p99, "max": found.max}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, and the checks behind it."""
    ways = all_ways(options.thresholds, options.retract, bool(options.curve))
    prompts = [(kind, prompt) for kind in options.classes for prompt in PROMPTS[kind][: options.prompts]]
    load = Engine.load(
        options.target,
        precision=options.precision,
        datastore=None,
        certificates="memory",
        threads=options.threads,
    )
    async with await load as engine:
        bench = Bench(engine, options.tokens)
        await bench.warm(ways)
        turns = await measure(bench, ways, prompts, options.rounds)
        result: dict[str, Any] = {}
        if options.traced and not options.curve:
            some = [(kind, text) for kind in options.classes for text in PROMPTS[kind][: options.traced]]
            result |= await watch(bench, [ways[0], ways[1]], some)
    target = engine.loaded.target  # its thread has ended with the engine
    result |= {"kernels": target.facts.kernels, "precision": target.facts.precision}
    result |= {"classes": classes(turns, ways), "checks": [check_ends(ways, turns)]}
    result["calibration_error"] = bench.calibration_errors()
    result["checks"].append(check_slips("the target", target_choices(target), ways, turns))
    if options.offline_transformers:
        choices = transformers_choices(options.target, len(target.vocabulary))
        result["checks"].append(check_slips("transformers", choices, ways, turns))
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m", help="a model reference, as grimboost takes it")
    parser.add_argument("--precision", choices=["auto", *PRECISIONS], default="int4")
    parser.add_argument("--tokens", type=int, default=200, help="to write behind each prompt")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=3, help="of each class")
    parser.add_argument("--classes", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--thresholds", nargs="+", type=float, default=[0.7, 0.9, 0.95])
    parser.add_argument("--retract", type=float, help="threshold of `retract`; the first of the thresholds")
    parser.add_argument("--traced", type=int, default=1, help="prompts of each class for overlap and heartbeat")
    parser.add_argument("--threads", type=int, default=0, help="of the target; 0 for one per processor")
    parser.add_argument("--curve", metavar="CLASS", choices=list(PROMPTS), help="one class over many thresholds")
    parser.add_argument("--offline-transformers", action="store_true", help="audit with transformers too")
    parser.add_argument("--json", action="store_true", dest="only_json")
    options = parser.parse_args()
    if options.offline_transformers and options.precision != "fp32":
        parser.error("--offline-transformers compares with fp32; add --precision fp32")
    if options.curve:
        options.classes, options.thresholds = [options.curve], list(CURVE)
    options.retract = options.thresholds[0] if options.retract is None else options.retract
    return options


def main() -> None:
    options = parse()
    result = {name: getattr(options, name) for name in ("target", "tokens", "prompts", "rounds", "curve")}
    result |= anyio.run(run, options)
    if not options.only_json:
        show(result)
        print()
    print(json.dumps(result))
    if any(check["wrong"] for check in result["checks"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
