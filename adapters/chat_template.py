"""A chat template, rendered to the letter as transformers renders it, without the seconds that importing it takes.

Templates come with models from anywhere, so they are foreign code: they run in jinja2's sandbox, see plain
texts only, and may raise what they like. The environment (`trim_blocks`, `lstrip_blocks`, loop controls, the
`generation` tag, `raise_exception`, `strftime_now`, `tojson`, `dict`, `namespace`) is transformers', from
`transformers.utils.chat_template_utils`; a test renders the same templates with both. It knows no tokenizer.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Message = Mapping[str, str]
"""`role` and `content`."""


class ChatTemplate:
    """A compiled template. Never changed after it was made, so threads may share it."""

    def __init__(self, source: str) -> None:
        """Raises `jinja2.TemplateError` for what is no template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        self._template = environment.from_string(source)

    def render(self, messages: Iterable[Message], add_generation_prompt: bool, special: Mapping[str, str]) -> str:
        """The text of a conversation. `special` has the special tokens that templates ask for, by name.

        Raises whatever the template makes jinja2 raise.
        """
        return self._template.render(
            messages=[{key: _plain(value) for key, value in message.items()} for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **special,
        )


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training. Here it only shows what it encloses."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_enclosed"), [], [], body).set_lineno(line)

    def _enclosed(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` for templates, without the attributes of the type."""

    def __call__(self, *args: Any, **entries: Any) -> dict[Any, Any]:
        return dict(*args, **entries)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Takes no names with an underscore in front: jinja2's own would let a template reach Python's internals."""

    def __init__(*args: Any, **attributes: Any) -> None:
        self, *given = args
        found = dict(*given, **attributes)
        for name in found:
            _check_name(name)
        Namespace.__init__(self, found)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got "
            f"{name!r}. Please rename the attribute."
        )


def _plain(value: str) -> str:
    """The text itself: a subclass of str could bring methods that the sandbox does not know."""
    return str.__str__(value)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own would escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
