#!/usr/bin/python3
"""Makes the goldens of internal/tokens/chattemplate with the genuine Jinja2 (3.1; Debian: python3-jinja2).

The environment is set up as the transformers library sets it up for chat templates. Run it in the repository's root:

    python3 hack/goldens/chattemplate.py            # writes internal/tokens/chattemplate/testdata/*.jsonl.gz
    python3 hack/goldens/chattemplate.py --random 100000 --seed 7 FILE   # more random snippets, for a comparison by hand
    python3 hack/goldens/chattemplate.py --mutate DIR --random 10000 FILE   # templates of DIR with small damages, likewise
"""

import argparse
import copy
import datetime
import glob
import gzip
import json
import os
import random
import re
import warnings

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

from chattemplate_snippets import CONTEXT, SNIPPETS, random_snippet

TESTDATA = "internal/tokens/chattemplate/testdata"
CLOCK = datetime.datetime(2026, 11, 20, 8, 0, 0)


class Generation(jinja2.ext.Extension):
    """The generation tag: its body is a call block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = CLOCK.strftime
    return env


ENV = environment()


def render(source, context):
    """What a template makes of a context, as the members of a golden."""
    context = copy.deepcopy(context)  # some filters change lists
    try:
        return {"out": ENV.from_string(source).render(**context)}
    except Exception as e:  # every exception is a result
        return {"err": f"{type(e).__name__}: {e}"}


def snippet(source):
    """A golden of a small template, with the names that it may look up in the context."""
    golden = {"src": source, **render(source, CONTEXT)}
    try:
        golden["names"] = sorted(jinja2.meta.find_undeclared_variables(ENV.parse(source)))
    except Exception:  # not a template
        pass
    return golden


def write(path, lines):
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    with open(path, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0) as z:
        z.write(text.encode())


def tool(name, description=None, parameters=None):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = tool(
    "get_weather",
    "Tells the weather.\nUnits are metric unless \"imperial\" is asked for. <b>Données & météo</b>",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city, e.g. 'Zürich'"},
            "days": {"type": "integer", "default": 3, "minimum": 1},
            "units": {"enum": ["metric", "imperial"]},
            "detail": {"type": ["string", "null"], "default": None},
            "items": {"type": "array", "items": {"type": "number", "exclusiveMinimum": 1e-07}},
            "where": {"type": "object", "properties": {"lon": {"type": "number"}, "lat": {"type": "number"}}},
        },
        "required": ["city"],
    },
)


def call(name, arguments, id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "You help.\nBriefly."}

CASES = {
    "user": dict(messages=[user("Hello, who are you?")]),
    "no_prompt": dict(messages=[user("Hello")], add_generation_prompt=False),
    "system": dict(messages=[SYSTEM, user("Hi")]),
    "turns": dict(messages=[SYSTEM, user("Hi"), assistant("  Hello! \n"), user("A joke."), assistant("Why?"), user("More")]),
    "no_system": dict(messages=[user("1"), assistant("2"), user("3"), assistant("4")]),
    "unusual": dict(messages=[user("  \t<|end|> {{ x }} \\ \" ' é 世界 🌍 \u00a0\u200b\u2028\x7f\x1f end  ")]),
    "empty": dict(messages=[]),
    "two_systems": dict(messages=[SYSTEM, {"role": "system", "content": "Second."}, user("x")]),
    "developer": dict(messages=[{"role": "developer", "content": "Dev."}, user("x")]),
    "wrong_order": dict(messages=[assistant("first"), user("x")]),
    "no_content": dict(messages=[user("x"), {"role": "assistant"}, user("y")]),
    "null_content": dict(messages=[user("x"), assistant(None), user("y")]),
    "parts": dict(messages=[user([{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "?"}])]),
    "tools": dict(messages=[user("Weather in Zürich?")], tools=[WEATHER, tool("now"), tool("say", "Says.", {"type": "object", "properties": {}})]),
    "call": dict(
        messages=[
            SYSTEM,
            user("Weather?"),
            assistant(None, tool_calls=[call("get_weather", {"city": "Bern", "days": 2, "x": [1.0, None, True, {"y": "ü"}]})]),
            {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "{\"temp\": 3.5}"},
            assistant("It is 3.5°."),
            user("Thanks"),
        ],
        tools=[WEATHER],
    ),
    "calls": dict(
        messages=[
            user("Both?"),
            assistant("Wait.", tool_calls=[call("a", {}), call("b", {"q": 1e22, "r": 123456789012345678901234567890}, "call_2")]),
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
            {"role": "tool", "tool_call_id": "call_2", "content": "two"},
        ],
        tools=[WEATHER],
    ),
    "call_text": dict(messages=[user("x"), assistant("", tool_calls=[call("f", '{"raw": 1}')])]),
    "reasoning": dict(messages=[user("x"), assistant("a", reasoning_content="r1"), user("y"), assistant("b", reasoning_content=" r2\n")]),
    "think_tags": dict(messages=[user("x"), assistant("<think>\nhm\n</think>\n\nyes"), user("<result>"), assistant("<think>so</think>no")]),
    "no_thinking": dict(messages=[user("x")], enable_thinking=False),
    "thinking": dict(messages=[user("x")], enable_thinking=True),
    "documents": dict(messages=[user("x")], documents=[{"title": "t1", "text": "d1"}, {"title": "Grün", "text": 7}]),
    "vision_id": dict(messages=[user([{"type": "image_url", "image_url": {"url": "u"}}])], add_vision_id=True),
    "long": dict(messages=[user(f"Line {i}\n" * (i % 7 + 1)) if i % 2 == 0 else assistant(f"Answer {i}.") for i in range(41)]),
}


PIECE = re.compile(r"\{[{%#][-+]?|[-+]?[}%#]\}|\w+|\s+|.", re.DOTALL)


def mutated(rng, sources):
    """A template with some of its pieces left out, repeated, exchanged, or replaced by some of another one."""
    pieces = PIECE.findall(rng.choice(sources))
    others = PIECE.findall(rng.choice(sources))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        i, j = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        kind = rng.randrange(5)
        if kind == 0:
            del pieces[i]
        elif kind == 1:
            pieces.insert(i, pieces[j])
        elif kind == 2:
            pieces[i], pieces[j] = pieces[j], pieces[i]
        elif kind == 3:
            pieces[i] = rng.choice(others)
        else:
            pieces[i:i + rng.randint(1, 8)] = []
        if not pieces:
            break
    return "".join(pieces)


def golden_templates():
    for name in sorted(os.listdir(TESTDATA)):
        if not name.endswith(".jinja"):
            continue
        with open(os.path.join(TESTDATA, name), newline="") as f:
            source = f.read()
        for case, members in CASES.items():
            context = {
                "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
                **members,
            }
            yield {"tmpl": name, "case": case, "ctx": context, **render(source, context)}


def main():
    warnings.simplefilter("ignore")
    args = argparse.ArgumentParser()
    args.add_argument("--random", type=int, default=4000)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--mutate", metavar="DIR")
    args.add_argument("file", nargs="?")
    args = args.parse_args()

    rng = random.Random(args.seed)
    if args.mutate:
        templates = []
        for path in sorted(glob.glob(os.path.join(args.mutate, "*.jinja"))):
            with open(path, newline="") as f:
                templates.append(f.read())
        sources = sorted({mutated(rng, templates) for _ in range(args.random)})
    else:
        sources = sorted({random_snippet(rng) for _ in range(args.random)})
    snippets = [snippet(s) for s in sources]
    # What shows an address of memory is no golden, nor what has half a surrogate pair.
    snippets = [s for s in snippets if not re.search(" at 0x|[\ud800-\udfff]", s.get("out", "") + s.get("err", ""))]
    if args.file:
        write(args.file, snippets)
        return
    write(os.path.join(TESTDATA, "random.jsonl.gz"), snippets)
    write(os.path.join(TESTDATA, "snippets.jsonl.gz"), [snippet(s) for s in SNIPPETS])
    write(os.path.join(TESTDATA, "golden.jsonl.gz"), golden_templates())
    with open(os.path.join(TESTDATA, "context.json"), "w") as f:
        json.dump(CONTEXT, f, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
