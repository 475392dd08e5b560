"""The OpenAI SDK for Python: lists, chats, streams, tools, completions, responses, and errors as its own classes."""
import os

import openai

url, model = os.environ["KVASIR_URL"], os.environ["KVASIR_MODEL"]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)

assert model in [m.id for m in client.models.list()], "the model is not listed"

say = [{"role": "user", "content": "Say something."}]
chat = client.chat.completions.create(model=model, messages=say, max_tokens=8)
assert chat.choices[0].message.content and chat.usage.completion_tokens > 0, chat

chunks = list(client.chat.completions.create(
    model=model, messages=say, max_tokens=8, stream=True, stream_options={"include_usage": True}))
text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
# An engine joins tokens in a chunk for a client that reads slowly: the role, the text and the usage are the least.
assert len(chunks) > 2 and text and chunks[-1].usage.completion_tokens > 0, chunks

tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
# vLLM refuses "auto" unless it was started with a tool parser.
choice = "none" if os.environ.get("KVASIR_REAL") else "auto"
answer = client.chat.completions.create(model=model, messages=say, tools=[tool], tool_choice=choice, max_tokens=8)
assert answer.choices[0].message.role == "assistant", answer

done = client.completions.create(model=model, prompt="Once", max_tokens=8)
assert done.choices[0].text, done

response = client.responses.create(model=model, input="Say something.", max_output_tokens=16)
assert response.status in ("completed", "incomplete") and response.output_text, response
kinds = [e.type for e in client.responses.create(model=model, input="Say something.", max_output_tokens=16, stream=True)]
assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds


def fails(kind, status, code, make):
    """The SDK must raise its own class, with the status, the code and a message."""
    try:
        make()
    except kind as e:
        assert e.status_code == status and e.message, (e.status_code, e.message)
        assert code is None or e.code == code, (e.code, code)
        return e
    raise AssertionError(f"no {kind.__name__}")


fails(openai.NotFoundError, 404, "model_not_found", lambda: client.chat.completions.create(model="no-such-model", messages=say))
fails(openai.NotFoundError, 404, "model_not_found", lambda: client.responses.create(model="no-such-model", input="Say something."))
fails(openai.BadRequestError, 400, None, lambda: client.chat.completions.create(model=model, messages=say, max_tokens=-1))
if not os.environ.get("KVASIR_GATEWAY"):  # which has a route for such paths, to an engine
    fails(openai.NotFoundError, 404, "not_found", lambda: client.post("/../nowhere", cast_to=object))
full = fails(openai.InternalServerError, 503, None,
             lambda: client.chat.completions.create(model="nobody-serves-this", messages=say))
assert full.response.headers.get("retry-after"), "a 503 without Retry-After"

# A retry of its own: the SDK waits for as long as Retry-After says, at most twice, and then raises the same class.
patient = client.with_options(max_retries=1)
fails(openai.InternalServerError, 503, None, lambda: patient.chat.completions.create(model="nobody-serves-this", messages=say))

with client.chat.completions.create(model=model, messages=say, max_tokens=64, stream=True) as stream:
    next(iter(stream))  # and break off
assert client.chat.completions.create(model=model, messages=say, max_tokens=4).choices
print("ok")
