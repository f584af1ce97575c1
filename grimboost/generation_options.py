"""Options of the command line that say how to generate, once for all commands that do. It knows click and names.

Defaults are written out here so that help needs no heavy import; a test compares them with `Parameters`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_COUNT = click.IntRange(min=0)
_SIZE = click.IntRange(min=1)


def _all(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def plugin_option(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """An import path may lead to a module in the current folder."""
    if any(":" in one for one in ([value] if isinstance(value, str) else value or ())):
        from grimboost.plugins import look_here

        look_here()
    return value


gate_option = click.option(
    "--gate",
    callback=plugin_option,
    metavar="RULE",
    help="A gate rule: a plug-in's name or package.module:name. It may hold back what would be shown unchecked.",
)


def _number(name: str, kind: click.IntRange, default: int, text: str) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=True, metavar="N", help=text)


prompt_options = _all(
    click.argument("prompt", required=False),
    click.option("--prompt-file", type=click.Path(), help="Read the prompt from a file, '-' for standard input."),
)

model_options = _all(
    click.option(
        "--target",
        default="smollm2-135m",
        show_default=True,
        callback=plugin_option,
        help="Alias, local directory, plug-in (its name or package.module:name) or hub id.",
    ),
    click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "bf16", "int8", "int4"]),
        default="auto",
        show_default=True,
        help="How weights are kept. auto: the fastest within 2% of the unrounded weights' perplexity, measured "
        "once.",
    ),
    click.option(
        "--kernels",
        type=click.Choice(["packed", "row-exact", "stock"]),
        help="What computes: the packed decoder, transformers on row-exact kernels, or transformers as it is. "
        "[default: packed, where the model can be]",
    ),
    click.option(
        "--threads",
        type=_COUNT,
        default=0,
        help="Threads of the packed decoder; 0 for one per processor.",
    ),
    click.option(
        "--drafter",
        default="lookup",
        show_default=True,
        callback=plugin_option,
        metavar="[lookup|none|PLUG-IN]",
        help="What proposes bytes: a lookup in prompt and output, nothing, or a plug-in: its name ('grimboost "
        "plugins' lists them) or package.module:name.",
    ),
    click.option(
        "--datastore",
        default="none",
        metavar="FILE",
        show_default=True,
        help="Draft from the answers in FILE too, and keep this one there: the end of the prompt and the output, "
        "as they are, readable for you only.",
    ),
    click.option(
        "--instrument",
        multiple=True,
        callback=plugin_option,
        metavar="PLUG-IN",
        help="Let an instrument watch: a plug-in's name or package.module:name; may be given several times.",
    ),
)

choice_options = _all(
    click.option(
        "--chat-template",
        type=click.Choice(["native", "none"]),
        default="native",
        show_default=True,
        help="Put the prompt into the target's chat template, or feed it as it stands.",
    ),
    click.option("--system", metavar="TEXT", help="System message for the chat template."),
    click.option("--max-new-tokens", type=_COUNT, metavar="N", help="At most N tokens (default 512)."),
    click.option("--max-new-bytes", type=_COUNT, metavar="N", help="At most N bytes of output."),
    click.option("--min-new-tokens", type=_COUNT, default=0, metavar="N", help="No end before N tokens."),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."
    ),
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-k", type=int, default=0, help="Keep the K most probable tokens; 0 keeps all."),
    click.option("--top-p", type=float, default=1.0, help="Keep tokens up to this probability mass; 1 keeps all."),
    click.option(
        "--min-p",
        type=float,
        default=0.0,
        show_default=True,
        help="Keep tokens this probable relative to the best one.",
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        default=1.0,
        show_default=True,
        help="Above 1 makes repetition less likely.",
    ),
    click.option("--seed", type=int, help="Seed of the sampling; drawn and reported if absent."),
    click.option("--ignore-eos", is_flag=True, help="Go on behind the end-of-sequence token."),
)

recording_options = _all(
    click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Write the message log."),
    click.option(
        "--record-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Write it to a new file in DIR, which is made if need be; the oldest logs there are removed in time.",
    ),
    click.option(
        "--record-keep-bytes",
        type=_SIZE,
        default=1 << 30,
        show_default=True,
        metavar="N",
        help="Keep at most N bytes of logs in DIR.",
    ),
    click.option(
        "--record-keep-days",
        type=float,
        default=30.0,
        show_default=True,
        metavar="N",
        help="Keep logs in DIR for N days.",
    ),
    click.option("--redact", is_flag=True, help="Record no texts: lengths, statistics and times only."),
)

trace_option = click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a trace that opens in Perfetto and chrome://tracing.",
)

streaming_options = _all(
    click.option(
        "--mode",
        type=click.Choice(["strict", "streaming"]),
        default="strict",
        show_default=True,
        help="Strict: every byte is the target's own choice. Streaming: confident drafts are shown at once, and "
        "the target checks them afterwards; all options below are for this mode.",
    ),
    gate_option,
    click.option(
        "--release",
        type=click.Choice(["certified", "always", "never"]),
        default="certified",
        show_default=True,
        help="Show drafts unchecked while a certificate says that slips are rare, always (for experiments), or "
        "never.",
    ),
    click.option("--epsilon", type=float, default=0.001, show_default=True, help="The certificate's slip rate."),
    click.option(
        "--delta", type=float, default=0.05, show_default=True, help="The certificate's chance to be wrong."
    ),
    click.option(
        "--domain",
        default="default",
        metavar="LABEL",
        show_default=True,
        help="Kind of prompt; evidence is kept for each kind apart.",
    ),
    click.option(
        "--threshold",
        type=float,
        metavar="P",
        help="Least calibrated confidence of what is shown unchecked; a certificate can only raise it. [default: "
        "what the certificate allows; 0.7 with --release always]",
    ),
    _number("--anchor-bytes", _SIZE, 512, "Everything shown is verified at least every N bytes."),
    _number("--max-unverified-bytes", _SIZE, 192, "At most N bytes are shown and not yet checked."),
    _number("--max-unverified-tokens", _SIZE, 64, "The same in tokens."),
    _number(
        "--doubt-bytes",
        _COUNT,
        32,
        "After a slip nothing is shown unchecked for N bytes, twice as many after a failed repair.",
    ),
    _number("--max-repairs", _COUNT, 2, "After more failed repairs the target goes on by itself for a while."),
    _number("--takeover-tokens", _COUNT, 8, "For so many tokens."),
    click.option(
        "--on-slip",
        type=click.Choice(["continue", "retract"]),
        default="continue",
        show_default=True,
        help="What was shown stands and is reported, or it is taken back: then the text ends up as in strict "
        "mode, and a pipe gets final bytes only.",
    ),
    click.option(
        "--finish",
        type=click.Choice(["audited", "open"]),
        default="audited",
        show_default=True,
        help="At the end wait until all is checked, or do not.",
    ),
)
