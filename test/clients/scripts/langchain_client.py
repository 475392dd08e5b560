"""LangChain: a call, a stream, a batch, and an error as the SDK's class."""
import os

import openai
from langchain_openai import ChatOpenAI

url, model = os.environ["KVASIR_URL"], os.environ["KVASIR_MODEL"]


def chat(name):
    return ChatOpenAI(model=name, base_url=url + "/v1", api_key="none", max_retries=0, max_tokens=8)


assert chat(model).invoke("Say something.").content
assert "".join(c.content for c in chat(model).stream("Say something."))
assert len(chat(model).batch(["One.", "Two.", "Three."])) == 3
try:
    chat("no-such-model").invoke("Say something.")
except openai.NotFoundError as e:
    assert e.code == "model_not_found", e.code
else:
    raise AssertionError("no NotFoundError")
print("ok")
