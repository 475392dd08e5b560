"""The Anthropic SDK: messages, streams, tools, counts of tokens, and errors as its own classes."""
import os

import anthropic

url, model = os.environ["KVASIR_URL"], os.environ["KVASIR_MODEL"]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
say = [{"role": "user", "content": "Say something."}]


def fails(kind, status, make):
    try:
        make()
    except kind as e:
        assert e.status_code == status and e.body["type"] == "error" and e.body["error"]["message"], (e.status_code, e.body)
        return e
    raise AssertionError(f"no {kind.__name__}")


fails(anthropic.NotFoundError, 404, lambda: client.messages.create(model="no-such-model", messages=say, max_tokens=8))
fails(anthropic.InternalServerError, 503, lambda: client.messages.create(model="nobody-serves-this", messages=say, max_tokens=8))
patient = client.with_options(max_retries=1)  # waits for as long as Retry-After says
fails(anthropic.InternalServerError, 503, lambda: patient.messages.create(model="nobody-serves-this", messages=say, max_tokens=8))

tools = [{"name": "weather", "description": "The weather.", "input_schema": {"type": "object", "properties": {}}}]
# vLLM refuses tools with "auto" unless it was started with a tool parser.
more = {} if os.environ.get("KVASIR_REAL") else {"tools": tools, "system": "Be brief."}
message = client.messages.create(model=model, messages=say, max_tokens=8, **more)
assert message.role == "assistant" and message.content[0].text and message.usage.output_tokens > 0, message
with client.messages.stream(model=model, messages=say, max_tokens=8) as stream:
    assert "".join(stream.text_stream)
    assert stream.get_final_message().usage.output_tokens > 0
assert client.messages.count_tokens(model=model, messages=say).input_tokens > 0
with client.messages.stream(model=model, messages=say, max_tokens=64) as stream:
    next(iter(stream))  # and break off
assert client.messages.create(model=model, messages=say, max_tokens=4).content
print("ok")
