"""Makes the fixture of the chat templates' tests: the templates of this folder rendered by Jinja2.

    pip install jinja2==3.1.6
    python make.py

The environment is the one of Hugging Face's `transformers`. `chatml.jinja` is the template of SmolLM2-135M-Instruct,
the others use the idioms of the templates of other families.
"""

import datetime
import json
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent
NOW = 1_722_434_400

S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    [(U, "What is the capital of France?")],
    [(S, "You are terse."), (U, "Hi"), (A, "Hello!"), (U, "  Spaces and\n\nlines \n")],
    [(S, "  padded \n"), (U, "a"), (A, "\n<think>\nhm\n</think>\n\nb\n"), (U, "<reply>c</reply>"), (A, "<think>x</think>y")],
    [(U, "日本 🙂 \"quoted\" <b>&amp;</b> \\n {{ x }} {% y %}"), (A, "It's.")],
    [(U, "one"), (U, "two")],
    [(A, "first")],
    [(U, ""), (A, "")],
    [(U, "u1"), (A, "a1"), (U, "u2 which is a rather long message, longer than forty characters"), (A, "a2"), (U, "u3")],
    [(S, "Only this.")],
    [("tool", "result"), (U, "x")],
]


class Generation(jinja2.ext.Extension):
    """The block that marks what the assistant wrote."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], []).set_lineno(line)


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(format)


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    templates, cases = {}, []
    for path in sorted(HERE.glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8").removesuffix("\n")
        template = environment.from_string(templates[path.stem])
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            case = {"template": path.stem, "messages": messages}
            for kind, add in (("prompt", True), ("transcript", False)):
                try:
                    case[kind] = template.render(
                        messages=messages,
                        add_generation_prompt=add,
                        bos_token="<|im_start|>",
                        eos_token="<|im_end|>",
                    )
                except Refused as refused:
                    case["refused"] = str(refused)
            cases.append(case)
    expected = {"now": NOW, "templates": templates, "cases": cases}
    text = json.dumps(expected, ensure_ascii=True, separators=(",", ":"))
    (HERE / "expected.json").write_text(text + "\n", encoding="ascii")


main()
