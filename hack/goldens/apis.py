#!/usr/bin/env python3
"""Records the goldens of internal/tokens/chatprompt for other APIs: the chats that vLLM makes of Messages and Responses
requests. The requests are made up; the conversion is vLLM's own, so this runs where a release of vLLM is installed, and
replaces the records of that release. In the repository's root, for each release:

    PYTHON -P hack/goldens/apis.py --release 0.32 [--count 150] [--seed 1] [FILE]
"""

import argparse
import copy
import gzip
import json
import os
import random

from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses import utils
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

GOLDEN = "internal/tokens/chatprompt/testdata/apis.jsonl.gz"
WORDS = ["rain", "Köln", "  two\n", "天気", '"q"', "<tag>", "x-anthropic-billing-header: 1", "{{ x }}", "a\\b", "😀"]
SCHEMAS = [{"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [1, 2.5, None, "ü"]}}}, {"properties": {}}, {}]


def text(r):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(0, 3)))


def maybe(r, share, make, to, key):
    if r.random() < share:
        to[key] = make()


def value(r, depth=0):
    kind = r.randint(0, 7 if depth < 2 else 5)
    if kind == 6:
        return [value(r, depth + 1) for _ in range(r.randint(0, 2))]
    if kind == 7:
        return {text(r): value(r, depth + 1) for _ in range(r.randint(0, 2))}
    return [1, -7, 2.5, None, True, text(r)][kind]


def block(r):
    made = {"type": "text", "text": text(r)}
    maybe(r, 0.2, lambda: {"type": "ephemeral"}, made, "cache_control")
    return made


def assistant_block(r):
    kind = r.randint(0, 9)
    if kind < 4:
        return block(r)
    if kind < 6:
        return {"type": "thinking", "thinking": text(r), "signature": "s"}
    if kind == 6:
        return {"type": "redacted_thinking", "data": "eA=="}
    use = {"type": "tool_use", "id": "toolu_%d" % r.randint(1, 3), "name": "f"}
    maybe(r, 0.9, lambda: {text(r): value(r) for _ in range(r.randint(0, 3))}, use, "input")
    return use


def user_block(r):
    if r.random() < 0.6:
        return block(r)
    made = {"type": "tool_result", "tool_use_id": "toolu_%d" % r.randint(1, 3)}
    maybe(r, 0.9, lambda: text(r) if r.random() < 0.5 else [block(r) for _ in range(r.randint(0, 3))], made, "content")
    maybe(r, 0.2, lambda: True, made, "is_error")
    return made


def messages_body(r):
    turns = []
    for _ in range(r.randint(1, 5)):
        role = r.choice(["user", "user", "assistant", "assistant", "system"])
        make = {"user": user_block, "assistant": assistant_block, "system": block}[role]
        content = text(r) if r.random() < 0.4 else [make(r) for _ in range(r.randint(0, 4))]
        turns.append({"role": role, "content": content})
    body = {"model": "m", "max_tokens": 4, "messages": turns}
    maybe(r, 0.6, lambda: text(r) if r.random() < 0.5 else [block(r) for _ in range(r.randint(0, 3))], body, "system")
    maybe(r, 0.4, lambda: [messages_tool(r) for _ in range(r.randint(0, 2))], body, "tools")
    if body.get("tools"):
        maybe(r, 0.4, lambda: {"type": r.choice(["auto", "any", "none"])}, body, "tool_choice")
    maybe(r, 0.2, lambda: {"effort": r.choice(["low", "high"])}, body, "output_config")
    maybe(r, 0.2, lambda: {"type": r.choice(["disabled", "disabled", "adaptive"])}, body, "thinking")
    maybe(r, 0.2, lambda: {"custom": value(r)}, body, "chat_template_kwargs")
    return body


def messages_tool(r):
    tool = {"name": "f", "input_schema": r.choice(SCHEMAS)}
    maybe(r, 0.5, lambda: text(r), tool, "description")
    maybe(r, 0.3, lambda: r.choice([True, False, None]), tool, "strict")
    return tool


def input_part(r):
    return {"type": "input_text", "text": text(r)}


def item(r):
    kind = r.randint(0, 9)
    if kind < 3:
        made = {"role": r.choice(["user", "user", "system", "developer"])}
        made["content"] = text(r) if r.random() < 0.5 else [input_part(r) for _ in range(r.randint(1, 2))]
        maybe(r, 0.5, lambda: "message", made, "type")
        return made
    if kind == 3:
        return {"role": "assistant", "content": text(r)}
    if kind == 4:
        parts = [{"type": "output_text", "text": text(r), "annotations": []} for _ in range(r.randint(1, 2))]
        return {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": parts}
    if kind == 5:
        made = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text(r)} for _ in range(r.randint(0, 2))]}
        maybe(r, 0.6, lambda: [{"type": "reasoning_text", "text": text(r)} for _ in range(r.randint(0, 2))], made, "content")
        return made
    if kind < 8:
        arguments = json.dumps({text(r): value(r)}, ensure_ascii=r.random() < 0.5)
        made = {"type": "function_call", "call_id": "call_%d" % r.randint(1, 3), "name": "f", "arguments": arguments}
        maybe(r, 0.3, lambda: "fc_1", made, "id")
        maybe(r, 0.3, lambda: "completed", made, "status")
        return made
    output = text(r) if r.random() < 0.7 else [input_part(r) for _ in range(r.randint(1, 2))]
    return {"type": "function_call_output", "call_id": "call_%d" % r.randint(1, 3), "output": output}


def responses_body(r):
    body = {"model": "m", "store": False, "input": text(r) if r.random() < 0.2 else [item(r) for _ in range(r.randint(1, 7))]}
    maybe(r, 0.5, lambda: text(r), body, "instructions")
    maybe(r, 0.4, lambda: [responses_tool(r) for _ in range(r.randint(0, 2))], body, "tools")
    if body.get("tools"):
        maybe(r, 0.4, lambda: r.choice(["auto", "none", "required"]), body, "tool_choice")
    maybe(r, 0.3, lambda: {"effort": r.choice(["low", "high", "none"])}, body, "reasoning")
    maybe(r, 0.2, lambda: {"custom": value(r)}, body, "chat_template_kwargs")
    return body


def responses_tool(r):
    tool = {"type": "function", "name": "f", "parameters": r.choice(SCHEMAS)}
    maybe(r, 0.5, lambda: text(r), tool, "description")
    tool["strict"] = r.choice([True, False, None])
    return tool


def without_none(fields):
    return {k: v for k, v in fields.items() if v is not None}


def chat_of_messages(body, merge):
    """merge: system messages amid the turns are merged, as where vLLM takes the template for one that refuses them."""
    request = AnthropicMessagesRequest.model_validate(body)
    messages = []
    AnthropicServingMessages._convert_system_message(request, messages, merge_inline_system=merge)
    AnthropicServingMessages._convert_messages(request.messages, messages, merge_inline_system=merge)
    convert = getattr(AnthropicServingMessages, "to_chat_completion_request", None)
    convert = convert or AnthropicServingMessages._convert_anthropic_to_openai_request
    chat = json.loads(convert(request, merge_inline_system=merge).model_dump_json(exclude_unset=True, include={
        "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs"}))
    chat["tools"] = [{**t, "function": without_none(t["function"])} for t in chat.get("tools") or []] or None
    return without_none({**chat, "messages": messages})


def chat_of_responses(body):
    request = ResponsesRequest.model_validate(body)
    messages = utils.construct_input_messages(request_instructions=request.instructions, request_input=request.input)
    tools = utils.construct_tool_dicts(request.tools, request.tool_choice)
    tools = [{"type": "function", "function": without_none(t["function"])} for t in tools or []] or None
    messages = to_jsonable_python(messages)
    for part in (p for m in messages if isinstance(m.get("content"), list) for p in m["content"]):
        part["type"] = "text"  # vLLM reads input_text as text; clients of chats do not send it
    return without_none({
        "messages": messages, "tools": tools, "reasoning_effort": request.reasoning and request.reasoning.effort,
        "chat_template_kwargs": request.chat_template_kwargs,
    })


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--release", required=True, help="that is installed, like 0.32")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("file", nargs="?", default=GOLDEN)
    args = parser.parse_args()
    minor = int(args.release.split(".")[1])
    lines = []
    if os.path.exists(args.file):
        with gzip.open(args.file, "rt") as f:
            lines = [line for line in map(json.loads, f) if line["release"] != args.release]
    r = random.Random(args.seed)
    for _ in range(args.count):
        # Before 0.31 system messages are merged where no --chat-template is given, and later where a template refuses them.
        made = [("messages", messages_body(r), lambda b: chat_of_messages(b, merge=minor < 31))]
        if minor >= 27:
            made.append(("responses", responses_body(r), chat_of_responses))
        for route, body, convert in made:
            line = {"release": args.release, "route": route, "body": body}
            try:
                line["chat"] = convert(copy.deepcopy(body))  # validation changes it
            except (ValidationError, ValueError) as e:
                line["err"] = type(e).__name__
            lines.append(line)
    lines.sort(key=lambda line: int(line["release"].split(".")[1]))
    text_of_all = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with gzip.GzipFile(args.file, "wb", mtime=0) as f:
        f.write(text_of_all.encode())


main()
