"""Every template comes out as with transformers, to the letter, or is refused where transformers refuses it."""

from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from grimboost.adapters.chat_template import ChatTemplate

SYSTEM = {"role": "system", "content": 'Be a <fox> & say "hi".  '}
USER = {"role": "user", "content": "\n 中 {{ not.code }} {% nor this %}\n"}
ASSISTANT = {"role": "assistant", "content": "Yes.\n\n"}
CHATS = ([USER], [SYSTEM, USER], [SYSTEM, USER, ASSISTANT], [USER, ASSISTANT, USER, ASSISTANT], [])
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

LLAMA_2 = """
{% if messages[0]['role'] == 'system' %}
    {% set loop_messages = messages[1:] %}
    {% set system_message = messages[0]['content'] %}
{% else %}
    {% set loop_messages = messages %}
{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% if loop.index0 == 0 and system_message is defined %}
        {% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {% else %}
        {% set content = message['content'] %}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {% else %}
        {{ ' ' + content.strip() + ' ' + eos_token }}
    {% endif %}
{% endfor %}
"""
LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if tools is not none %}tools{% endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n'+ message['content'] | trim }}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
NAMESPACE = """
{% set ns = namespace(found=false, last='') %}
{% for message in messages %}
  {% if message.role == 'assistant' %}{% set ns.found = true %}{% break %}{% endif %}
  {% if message.role == 'system' %}{% continue %}{% endif %}
  {% set ns.last = message.content %}
{% endfor %}
{{ ns.found }}{{ ns.last }}{{ namespace(self=1).self }}{{ namespace({'a': 2}, b=3).a }}
"""
GENERATION = """
{% for message in messages %}
    {%- if message.role == 'assistant' %}
        {% generation %}{% set inside = 1 %}{{ message.content }}{{ inside }}
        {% endgeneration %}{{ inside is defined }}
    {% else %}{{ message.content }}{% endif %}
{% endfor %}
"""
TEMPLATES = [
    LLAMA_2,
    LLAMA_3,
    NAMESPACE,
    GENERATION,
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\n",
    "{{ messages | tojson }}{{ messages | tojson(indent=2, sort_keys=true) }}",
    "{{ '<&é' | tojson(ensure_ascii=true) }}{{ [1, {}] | tojson(separators=(',', ':')) }}",
    "{{ messages }}{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ nothing }}",
    "{{ dict(a=1, **dict(b=2)) }}{{ dict.fromkeys(['x', 'y'], 0) }}{{ dict.fromkeys('ab') }}",
    "{{ strftime_now('%Y') }}",
    "{% macro m(x) %}<{{ x }}>{% endmacro %}{% call m('&') %}{% endcall %}{{ m('<') }}{{ messages | length }}",
    "  {%- filter upper %}{{ messages[0].content }}{% endfilter %}  \n\n",
    "",
]
REFUSED = [
    "{% for %}",
    "{% generation %}",
    "{{ nothing.here }}",
    "{{ raise_exception('no') }}",
    "{{ 1 / 0 }}",
    "{{ messages.append(1) }}",
    "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1] }}",
    "{{ namespace(__class__=1) }}",
    "{{ namespace({'_a': 1}) }}",
    "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{{ dict.__class__.__base__ }}{{ dict.__class__.__base__() }}",
    "{{ messages[5].content }}",
    "{{ 'x' | no_such_filter }}",
    "{% include 'x' %}",
]


def expected(template: str, chat: list[dict[str, str]], prompt: bool) -> str:
    [text], _ = render_jinja_template([chat], chat_template=template, add_generation_prompt=prompt, **SPECIAL)
    return str(text)


def outcome(render: Any, *arguments: Any) -> str:
    """The text, or the error that a template ends with."""
    try:
        return str(render(*arguments))
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("TemplateDict", "_Dict")


@pytest.mark.parametrize("template", [*TEMPLATES, *REFUSED])
@pytest.mark.parametrize("prompt", [True, False])
def test_the_text_is_that_of_transformers(template: str, prompt: bool) -> None:
    for chat in CHATS:
        ours = outcome(lambda c: ChatTemplate(template).render(c, prompt, SPECIAL), chat)
        assert ours == outcome(expected, template, chat, prompt)


@pytest.mark.parametrize("template", REFUSED)
def test_what_must_not_be_rendered_raises(template: str) -> None:
    with pytest.raises((TemplateError, ZeroDivisionError, TypeError)):
        ChatTemplate(template).render([USER], True, {})


def test_a_text_that_is_more_than_a_text_is_only_a_text_to_a_template() -> None:
    class Sly(str):
        def leak(self) -> str:
            return "leaked"

    render = ChatTemplate("{{ messages[0].content }} {{ messages[0].content.leak is defined }}").render
    assert render([{"role": "user", "content": Sly("x")}], True, {}) == "x False"


def test_rendering_leaves_nothing_behind_in_the_template() -> None:
    template = ChatTemplate(NAMESPACE)
    first = template.render([USER, ASSISTANT], True, SPECIAL)
    template.render([SYSTEM], False, {})
    assert template.render([USER, ASSISTANT], True, SPECIAL) == first
