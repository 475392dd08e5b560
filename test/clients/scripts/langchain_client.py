"""LangChain: a call, a stream, a batch, tools, and errors as the SDK's classes."""
import os

import openai
from langchain_openai import ChatOpenAI

url, model = os.environ["KVASIR_URL"], os.environ["KVASIR_MODEL"]


def chat(name, retries=0):
    return ChatOpenAI(model=name, base_url=url + "/v1", api_key="none", max_retries=retries, max_tokens=8)


def weather(place: str) -> str:
    """The weather of a place."""
    return place


assert chat(model).invoke("Say something.").content
assert "".join(c.content for c in chat(model).stream("Say something."))
assert len(chat(model).batch(["One.", "Two.", "Three."])) == 3
choice = "none" if os.environ.get("KVASIR_REAL") else "auto"  # which vLLM refuses without a tool parser
assert chat(model).bind_tools([weather], tool_choice=choice).invoke("Say something.").content
for name, retries, kind, code in (("no-such-model", 0, openai.NotFoundError, "model_not_found"), ("nobody-serves-this", 1, openai.InternalServerError, None)):
    try:
        chat(name, retries).invoke("Say something.")
    except kind as e:
        assert e.message and (code is None or e.code == code), (e.message, e.code)
    else:
        raise AssertionError(f"no {kind.__name__}")
print("ok")
