"""The SDKs of OpenAI and Anthropic for Python over HTTP/2, which TLS negotiates: an answer and a stream of each."""
import os

import anthropic
import openai

url, model = os.environ["KVASIR_URL"], os.environ["KVASIR_MODEL"]
say = [{"role": "user", "content": "Say something."}]
versions = []


def noted(sdk):
    """A client of the SDK that speaks HTTP/2 if the server does, and notes the version of each answer."""
    return sdk.DefaultHttpxClient(http2=True, event_hooks={"response": [lambda r: versions.append(r.http_version)]})


client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, http_client=noted(openai))
assert client.chat.completions.create(model=model, messages=say, max_tokens=8).choices[0].message.content
chunks = list(client.chat.completions.create(model=model, messages=say, max_tokens=8, stream=True))
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks

other = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, http_client=noted(anthropic))
assert other.messages.create(model=model, messages=say, max_tokens=8).content[0].text
with other.messages.stream(model=model, messages=say, max_tokens=8) as stream:
    assert "".join(stream.text_stream)

assert versions == ["HTTP/2"] * 4, versions
