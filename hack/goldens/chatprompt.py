#!/usr/bin/env python3
"""Makes the goldens of internal/tokens/chatprompt: what chat requests become before the template sees them.

It needs pydantic 2, which decides what of a message is valid and in which order its fields come: the types below are
those of OpenAI's client and of vLLM, the rest restates what vLLM does with them, by release. Run it in the
repository's root:

    python3 hack/goldens/chatprompt.py [--count 400] [--seed 1] [FILE]
"""

import argparse
import copy
import gzip
import json
import random
from typing import Any, Iterable, Optional, Union

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Literal, Required, TypedDict

GOLDEN = "internal/tokens/chatprompt/testdata/requests.jsonl.gz"


class Text(TypedDict, total=False):
    text: Required[str]
    type: Required[Literal["text"]]


class Refusal(TypedDict, total=False):
    refusal: Required[str]
    type: Required[Literal["refusal"]]


class ImageURL(TypedDict, total=False):
    url: Required[str]


class Image(TypedDict, total=False):
    image_url: Required[ImageURL]
    type: Required[Literal["image_url"]]


class SimpleImage(TypedDict, total=False):
    image_url: Optional[str]
    uuid: Optional[str]


class Called(TypedDict, total=False):
    arguments: Required[str]
    name: Required[str]


class Call(TypedDict, total=False):
    id: Required[str]
    function: Required[Called]
    type: Required[Literal["function"]]


class CustomInput(TypedDict, total=False):
    input: Required[str]
    name: Required[str]


class CustomCall(TypedDict, total=False):
    id: Required[str]
    custom: Required[CustomInput]
    type: Required[Literal["custom"]]


class Developer(TypedDict, total=False):
    content: Required[Union[str, Iterable[Text]]]
    role: Required[Literal["developer"]]
    name: str


class System(TypedDict, total=False):
    content: Required[Union[str, Iterable[Text]]]
    role: Required[Literal["system"]]
    name: str


class User(TypedDict, total=False):
    content: Required[Union[str, Iterable[Union[Text, Image]]]]
    role: Required[Literal["user"]]
    name: str


class Assistant(TypedDict, total=False):
    role: Required[Literal["assistant"]]
    audio: Optional[dict]
    content: Union[str, Iterable[Union[Text, Refusal]], None]
    function_call: Optional[Called]
    name: str
    refusal: Optional[str]
    tool_calls: Iterable[Union[Call, CustomCall]]


class Tool(TypedDict, total=False):
    content: Required[Union[str, Iterable[Text]]]
    role: Required[Literal["tool"]]
    tool_call_id: Required[str]


class Function(TypedDict, total=False):
    content: Required[Optional[str]]
    name: Required[str]
    role: Required[Literal["function"]]


class Custom(TypedDict, total=False):
    role: Required[str]
    content: Union[str, list[Union[Text, Image, Refusal, SimpleImage, str]]]
    name: str
    tool_call_id: Optional[str]
    tool_calls: Optional[Iterable[Call]]
    reasoning: Optional[str]


class Base(BaseModel):
    model_config = ConfigDict(extra="allow")


class ToolFunction(Base):
    name: str
    description: Optional[str] = None
    parameters: Optional[dict[str, Any]] = None


class ToolParam(Base):
    type: Literal["function"] = "function"
    function: ToolFunction


class Request(Base):
    messages: list[Union[Developer, System, User, Assistant, Tool, Function, Custom]]
    tools: Optional[list[ToolParam]] = None


BILLING = "x-anthropic-billing-header"


def billed(parts):
    for p in parts:
        if p["text"].startswith(BILLING):
            rest = p["text"].partition("\n")[2]
            if not rest:
                continue
            p = {**p, "text": rest}
        yield p


def content(message, release, openai_format):
    given = message.get("content")
    parts = [] if given is None else [{"type": "text", "text": given}] if isinstance(given, str) else list(given)
    assert all(p.get("type") == "text" for p in parts)
    if release >= 32 and message["role"] == "system":
        parts = list(billed(parts))
    if openai_format:
        extra = lambda p: {k: v for k, v in p.items() if k not in ("type", "text", "uuid")} if release >= 26 else {}
        return [{"type": "text", "text": p["text"], **extra(p)} for p in parts]
    return "\n".join(p["text"] for p in parts if p["text"])


def arguments(text, release):
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        if release < 29:
            raise
        value = {}
    if release >= 29 and not isinstance(value, dict) or release >= 23 and value is None:
        value = {}
    return value


def systems(messages):
    """What becomes of developers' messages from 0.23 on where the template does not know the role."""
    if not any(m["role"] == "developer" for m in messages):
        return messages
    messages = [{k: v for k, v in {**m, "role": "system"}.items() if k != "tools"} if m["role"] == "developer" else m for m in messages]
    if all(m["role"] != "system" for m in messages[1:]):
        return messages
    texts = [m["content"] if isinstance(m["content"], str) else "\n".join(p["text"] for p in m["content"]) for m in messages if m["role"] == "system"]
    return [{"role": "system", "content": "\n\n".join(t for t in texts if t)}] + [m for m in messages if m["role"] != "system"]


def conversation(messages, release, openai_format):
    for m in messages:
        role = m["role"]
        out = {"role": role, "content": content(m, release, openai_format)}
        if role == "assistant":
            calls = m.get("tool_calls")
            if calls is not None:
                calls = [dict(c, function=dict(c["function"])) for c in calls]
                for c in calls:
                    c["function"]["arguments"] = arguments(c["function"]["arguments"], release)
                if calls:
                    out["tool_calls"] = calls
            reasoning = m.get("reasoning")
            if release >= 23 and reasoning is None:
                reasoning = m.get("reasoning_content")
            if reasoning is not None:
                out["reasoning"] = out["reasoning_content"] = reasoning
        elif role == "tool":
            if "tool_call_id" in m:
                out["tool_call_id"] = m["tool_call_id"]
            if release >= 21 and isinstance(out["content"], list):
                out["content"] = "\n".join(p["text"] for p in out["content"])
        if isinstance(m.get("name"), str):
            out["name"] = m["name"]
        if role == "developer":
            out["tools"] = None
        yield out


def variables(body, release, openai_format):
    request = Request(**copy.deepcopy(body))
    tools = None if request.tools is None else [t.model_dump() for t in request.tools]
    effort = body.get("reasoning_effort")
    kwargs = dict(body.get("chat_template_kwargs") or {})
    if release >= 17:
        kwargs = {k: v for k, v in kwargs.items() if v not in (None, "auto")}
    if effort is not None:
        kwargs["reasoning_effort"] = effort
        if release >= 24 and "enable_thinking" not in (body.get("chat_template_kwargs") or {}):
            kwargs["enable_thinking"] = effort != "none"
    messages = list(conversation(request.messages, release, openai_format))
    return {
        "messages": systems(messages) if release >= 23 else messages,
        "tools": tools,
        "documents": body.get("documents"),
        "add_generation_prompt": body.get("add_generation_prompt", True),
        **kwargs,
    }


TEXTS = ["", "Hi", "  spaces \n", "Ünï 世界 🌍", "a\"b\\c\n\t", "{{ x }}", "</s>", "line1\nline2", "x" * 50, BILLING + ": cch=1;\nrest", BILLING]
ARGUMENTS = ["", "{}", '{"a": 1, "b": [1.0, null, true, {"c": "d"}]}', '{"z": 1, "a": 2, "z": 3}', "[1, 2]", '{"q": "ü\\u00e9\\ud83d\\ude00", "n": 1e22, "i": 12345678901234567890}',
             "null", "{bad", "7", '"s"', " {} "]
ROLES = ["user", "assistant", "system", "tool", "developer", "function", "ipython"]


def random_parts(rng):
    out = []
    for _ in range(rng.randint(0, 3)):
        part = {"type": "text", "text": rng.choice(TEXTS)}
        if rng.random() < 0.2:
            part = {"cache_control": {"type": "ephemeral"}, **part}
        if rng.random() < 0.03:
            part = rng.choice([{"text": "x"}, {"type": "text"}, {"type": "text", "text": None}, "plain", {"type": "refusal", "refusal": "no"}, {"type": "odd"}])
        out.append(part)
    return out


def random_call(rng):
    call = {"id": f"call_{rng.randint(0, 9)}", "type": "function", "function": {"name": "f", "arguments": rng.choice(ARGUMENTS[:6] if rng.random() < 0.9 else ARGUMENTS)}}
    if rng.random() < 0.3:
        call = {"index": 0, **call}
    if rng.random() < 0.2:
        call["function"] = {"extra": None, **call["function"]}
    if rng.random() < 0.3:
        items = list(call.items())
        rng.shuffle(items)
        call = dict(items)
    if rng.random() < 0.03:
        del call[rng.choice(list(call))]
    return call


def random_message(rng):
    role = rng.choice(ROLES[:4] if rng.random() < 0.8 else ROLES)
    m = {"role": role, "content": rng.choice(TEXTS) if rng.random() < 0.7 else random_parts(rng)}
    if role == "assistant":
        if rng.random() < 0.5:
            m["tool_calls"] = [random_call(rng) for _ in range(rng.randint(0, 2) or 1)] if rng.random() < 0.9 else rng.choice([[], None])
        if rng.random() < 0.3:
            m["content"] = None
        if rng.random() < 0.3:
            m["reasoning"] = rng.choice(["because", None])
        if rng.random() < 0.2:
            m["reasoning_content"] = "so"
        if rng.random() < 0.2:
            m.update(refusal=None, audio=None, function_call=None)
    if role == "tool" and rng.random() < 0.9:
        m["tool_call_id"] = rng.choice(["call_1", "call_1", None])
    if rng.random() < 0.15:
        m["name"] = "n"
    if rng.random() < 0.05:
        m["foo"] = {"bar": 1}
    if rng.random() < 0.03:
        m.pop(rng.choice(["content", "role"]))
    if rng.random() < 0.02:
        m["content"] = rng.choice([None, 5, {}])
    if rng.random() < 0.3:
        items = list(m.items())
        rng.shuffle(items)
        m = dict(items)
    return m


SCHEMAS = [None, {}, {"type": "object", "properties": {"z": {"type": "string", "enum": ["a", "b"]}, "a": {"type": "number", "minimum": 0.5, "default": 1e-7}}, "required": ["z"]}]


def random_tool(rng):
    f = {"name": "f"}
    if rng.random() < 0.7:
        f["parameters"] = rng.choice(SCHEMAS)
    if rng.random() < 0.7:
        f = {"description": rng.choice(["Does <it> & \"that\" é", None, ""]), **f}
    if rng.random() < 0.2:
        f = {"strict": rng.choice([True, False, None]), **f}
    if rng.random() < 0.05:
        f["x"] = 1
    tool = {"function": f, "type": "function"}
    if rng.random() < 0.1:
        del tool["type"]
    if rng.random() < 0.05:
        tool["extra"] = 1
    return tool


def random_body(rng):
    body = {"model": "m", "messages": [random_message(rng) for _ in range(rng.randint(1, 4))]}
    if rng.random() < 0.4:
        body["tools"] = [random_tool(rng) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.2:
        body["add_generation_prompt"] = rng.choice([True, False])
    if rng.random() < 0.2:
        body["chat_template_kwargs"] = rng.choice([{"enable_thinking": False}, {"custom": [1, {"a": 2.0}]}, {"unused": 1}, {"custom": None}, {"custom": "auto"}, None])
    if rng.random() < 0.2:
        body["reasoning_effort"] = rng.choice(["low", "high", "none", None])
    if rng.random() < 0.1:
        body["documents"] = rng.choice([[{"title": "t", "text": "x"}], None, []])
    return body


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--count", type=int, default=800)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("file", nargs="?", default=GOLDEN)
    args = args.parse_args()
    rng = random.Random(args.seed)
    with open(args.file, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0) as z:
        for _ in range(args.count):
            body, release, openai_format = random_body(rng), rng.choice([12, 18, 20, 22, 24, 28, 29, 32]), rng.random() < 0.5
            try:
                result = {"vars": variables(body, release, openai_format)}
            except (ValidationError, ValueError, AssertionError, AttributeError, KeyError, TypeError) as e:
                result = {"err": type(e).__name__}
            line = {"release": f"0.{release}.0", "openai": openai_format, "body": body, **result}
            z.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
