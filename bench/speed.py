"""The main benchmark: grimboost against transformers, llama.cpp and OpenVINO GenAI on one model, turn by turn.

    python -m bench.speed [--precision fp32 int4] [--contenders 'grimboost*' llama.cpp] [--reference NAME]
                          [--tokens 200] [--rounds 1] [--prompts 3] [--target smollm2-135m]
                          [--threads 2] [--peer-python PATH] [--gguf FILE]

Each contender is a process of its own and writes the same number of tokens greedily behind the same prompt ids
(end-of-sequence ignored), with the same number of threads, from an empty cache and without what it learned from
earlier prompts. They take turns prompt by prompt, each prompt begun by another one, because a machine's speed
drifts. Other work on the same cores harms some far more than others, so what it took meanwhile is noted. Seconds
include the prefill; of several rounds the fastest counts. Progress goes to standard error; a Markdown table and,
last, one JSON line to standard output:

tokens/s         tokens of all prompts of the class by their seconds
ratio            to the reference contender (the first one that runs, unless chosen)
own plain        prompts on which the ids equal, in every round, those of the same engine without drafting (an
                 engine that does not draft is compared with its own other rounds, if there are any)
as transformers  prompts on which the ids equal transformers' greedy ids in fp32. Int4 and int8 are other weights,
                 and bf16 rounds otherwise, so only fp32 is held to it
passes           target passes that chose tokens
first byte       mean milliseconds to the first byte; to the first token where an engine was asked for no text
disturbed        (JSON only) the largest share of all processors that others took during one of these answers

llama.cpp reads the GGUF file that the target was made from. OpenVINO gets int4 weights of the same model, made
once below the cache by `bench.openvino_export`. `bench.peers` says how both are run; they are skipped, with the
reason, where they are not installed (the extra `bench`).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct

from bench.prompts import PROMPTS
from bench.turns import ROOT, Contender, Unavailable, prompt_ids
from grimboost.adapters.target import Precision
from grimboost.model_cache import cache_root
from grimboost.model_references import ResolvedModel, resolve

TRUTH = "transformers fp32"
DISTURBED = 0.05

Answers = dict[str, list[dict[str, Any]]]
"""Contender -> its answers to one prompt, one per round."""


class Spec(Struct, frozen=True):
    """A contender before it runs. `plain`: the same engine without drafting."""

    name: str
    plain: str
    kind: str
    detail: str
    precision: str = ""


def all_specs(precisions: list[str]) -> list[Spec]:
    """Every contender, in the order of the table."""
    found = []
    for precision in ("fp32", "bf16"):
        plain = f"transformers {precision}"
        found += [Spec(plain, plain, "transformers", "none", precision)]
        found += [Spec(f"{plain} lookup", plain, "transformers", "lookup", precision)]
    found += [Spec("llama.cpp", "llama.cpp", "llama.cpp", "none")]
    plain = "openvino int4"
    found += [Spec(plain, plain, "openvino", "none"), Spec(f"{plain} lookup", plain, "openvino", "lookup")]
    for precision in precisions:
        plain = f"grimboost {precision} none"
        found += [Spec(plain, plain, "grimboost", "none", precision)]
        found += [Spec(f"grimboost {precision} lookup", plain, "grimboost", "lookup", precision)]
    return found


# ------------------------------------------------------------ starting contenders


def start(spec: Spec, model: ResolvedModel, options: argparse.Namespace) -> Contender:
    """The running contender. Raises `Unavailable`."""
    if spec.kind in {"transformers", "grimboost"}:
        arguments = [spec.kind, options.target, spec.precision, spec.detail, str(options.threads)]
        return Contender(spec.name, *arguments, threads=options.threads)
    path = gguf_file(model, options) if spec.kind == "llama.cpp" else openvino_directory(model, options)
    arguments = [spec.kind, str(path), str(options.threads), spec.detail]
    return Contender(
        spec.name, *arguments, module="bench.peers", python=options.peer_python, threads=options.threads
    )


def gguf_file(model: ResolvedModel, options: argparse.Namespace) -> Path:
    """The file that the target was made from."""
    file = Path(options.gguf).absolute() if options.gguf else model.directory / "model.gguf"
    if not file.is_file():
        raise Unavailable("the target was not made from a GGUF file that is still here (--gguf gives one)")
    return file


def openvino_directory(model: ResolvedModel, options: argparse.Namespace) -> Path:
    """The target's int4 model for OpenVINO, exported where it is missing."""
    directory = cache_root() / "bench" / f"openvino-int4-sym-g64-{model.digest[:12]}"
    if not directory.is_dir():
        note("exporting the model for OpenVINO, once (a minute)")
        command = [options.peer_python, "-m", "bench.openvino_export", str(model.directory), str(directory)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = [*done.stderr.strip().splitlines(), "it said nothing"][-2:]
            raise Unavailable(f"the export ended with {done.returncode}: {reason[0]}")
    return directory


def start_all(
    specs: list[Spec], model: ResolvedModel, options: argparse.Namespace, stack: ExitStack
) -> tuple[list[Contender], dict[str, str]]:
    """Those that can take part, and the others with the reason."""
    running, skipped = [], {}
    for spec in specs:
        note(f"starting {spec.name}")
        try:
            running.append(stack.enter_context(start(spec, model, options)))
        except Unavailable as error:
            skipped[spec.name] = str(error)
            note(f"skipped {spec.name}: {error}")
    if not running:
        raise SystemExit("no contender is left")
    return running, skipped


# ------------------------------------------------------------ measuring


def chosen_prompts(count: int) -> Iterator[tuple[str, str]]:
    """The first `count` prompts of each class."""
    return ((kind, prompt) for kind, prompts in PROMPTS.items() for prompt in prompts[:count])


def measure(contenders: list[Contender], options: argparse.Namespace) -> list[tuple[str, Answers]]:
    """(class, answers) of each prompt."""
    warm = prompt_ids(options.target, "Hello!")
    for contender in contenders:
        contender.ask(warm, 8)
    rows: list[tuple[str, Answers]] = []
    prompts = list(chosen_prompts(options.prompts))
    for place, (kind, prompt) in enumerate(prompts):
        ids = prompt_ids(options.target, prompt)
        answers: Answers = {contender.name: [] for contender in contenders}
        for turn in range(options.rounds):
            begin = (place + turn) % len(contenders)
            for contender in contenders[begin:] + contenders[:begin]:
                answer = contender.ask(ids, options.tokens)
                if len(answer["ids"]) != options.tokens:
                    raise SystemExit(f"{contender.name} wrote {len(answer['ids'])} tokens, not {options.tokens}")
                answers[contender.name].append(answer)
        rows.append((kind, answers))
        speeds = ", ".join(f"{name} {options.tokens / best(a)['seconds']:.1f}" for name, a in answers.items())
        note(f"{place + 1}/{len(prompts)} {kind}, {len(ids)} prompt tokens, tokens/s: {speeds}")
        for name, a in answers.items():
            if (best(a)["disturbed"] or 0) > DISTURBED:
                note(f"  {name} was disturbed: others took {best(a)['disturbed']:.0%} of the processors")
    return rows


def best(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest round."""
    return min(answers, key=lambda answer: float(answer["seconds"]))


def same(answers: Answers, name: str, other: str) -> bool:
    """Whether all rounds' ids are those of the other's first round."""
    return all(answer["ids"] == answers[other][0]["ids"] for answer in answers[name])


# ------------------------------------------------------------ reporting


def equal_on(name: str, other: str, rows: list[Answers]) -> str | None:
    """`equal/prompts`, or None where there is nothing to compare with."""
    if other not in rows[0] or (name == other and len(rows[0][name]) == 1):
        return None
    return f"{sum(same(answers, name, other) for answers in rows)}/{len(rows)}"


def cell(spec: Spec, reference: str, rows: list[Answers], tokens: int) -> dict[str, Any]:
    """One contender on one class."""
    fastest = [best(answers[spec.name]) for answers in rows]
    seconds = sum(answer["seconds"] for answer in fastest)
    return {
        "tokens_per_second": round(tokens * len(rows) / seconds, 2),
        "ratio": round(sum(best(answers[reference])["seconds"] for answers in rows) / seconds, 3),
        "own_plain": equal_on(spec.name, spec.plain, rows),
        "as_transformers": equal_on(spec.name, TRUTH, rows),
        "passes": sum(answer["passes"] for answer in fastest),
        "first_byte_ms": round(1000 * sum(answer["first"] for answer in fastest) / len(fastest), 1),
        "disturbed": max(answer["disturbed"] or 0 for answer in fastest),
    }


def classes(rows: list[tuple[str, Answers]], specs: list[Spec], reference: str, tokens: int) -> dict[str, Any]:
    """Class (and "all") -> contender -> figures."""
    kinds = [*dict.fromkeys(kind for kind, _ in rows), "all"]
    return {
        kind: {
            spec.name: cell(spec, reference, [answers for k, answers in rows if kind in {k, "all"}], tokens)
            for spec in specs
        }
        for kind in kinds
    }


def show(result: dict[str, Any]) -> None:
    """The table, in Markdown."""
    print(
        f"\n{result['target']}, {result['tokens']} tokens a prompt, {result['threads']} threads, "
        f"ratio to {result['reference']}\n"
    )
    print("| class | contender | tokens/s | ratio | own plain | as transformers | passes | first byte, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, cells in result["classes"].items():
        for name, c in cells.items():
            print(
                f"| {kind} | {name} | {c['tokens_per_second']:.1f} | {c['ratio']:.2f} | {c['own_plain'] or '-'} | "
                f"{c['as_transformers'] or '-'} | {c['passes']} | {c['first_byte_ms']:.0f} |"
            )
    print()


def note(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(spec.name for spec in all_specs(["PRECISION"]))
    parser.add_argument("--target", default="smollm2-135m", help="a model reference, as grimboost takes it")
    parser.add_argument("--precision", nargs="+", choices=get_args(Precision), default=["fp32", "int4"])
    parser.add_argument("--contenders", nargs="+", default=["*"], help=f"names or patterns, of: {names}")
    parser.add_argument("--reference", help="the contender to which ratios are given")
    parser.add_argument("--tokens", type=int, default=200, help="to write behind each prompt")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=3, help="of each class")
    parser.add_argument("--threads", type=int, default=2, help="of each contender")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has the other engines")
    parser.add_argument("--gguf", help="the file for llama.cpp, instead of the one that the target was made from")
    return parser.parse_args()


def main() -> None:
    options = parse()
    every = all_specs(options.precision)
    specs = [spec for spec in every if any(fnmatch(spec.name, pattern) for pattern in options.contenders)]
    names = ", ".join(spec.name for spec in every)
    if not specs or not {options.reference} <= {None, *(spec.name for spec in specs)}:
        raise SystemExit(f"--contenders and --reference choose from: {names}")
    with ExitStack() as stack:
        contenders, skipped = start_all(specs, resolve(options.target), options, stack)
        running = {contender.name for contender in contenders}
        reference = options.reference if options.reference in running else contenders[0].name
        rows = measure(contenders, options)
    specs = [spec for spec in specs if spec.name in running]
    result = {name: getattr(options, name) for name in ("target", "tokens", "rounds", "prompts", "threads")}
    result |= {"reference": reference, "skipped": skipped}
    result |= {"classes": classes(rows, specs, reference, options.tokens)}
    show(result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
