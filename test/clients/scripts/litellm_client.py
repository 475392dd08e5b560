"""litellm: a call, a stream, and errors as its own classes."""
import os

import litellm

url, model = os.environ["KVASIR_URL"], os.environ["KVASIR_MODEL"]
litellm.telemetry = False
say = [{"role": "user", "content": "Say something."}]


def complete(name, retries=0, **more):  # without tools: for these it needs a package that it does not install
    return litellm.completion(model="hosted_vllm/" + name, api_base=url + "/v1", api_key="none", messages=say, max_tokens=8,
                              num_retries=0, max_retries=retries, **more)


assert complete(model).choices[0].message.content
assert "".join(c.choices[0].delta.content or "" for c in complete(model, stream=True))
for name, retries, kind, status, code in (
    ("no-such-model", 0, litellm.NotFoundError, 404, "model"),
    ("nobody-serves-this", 1, litellm.ServiceUnavailableError, 503, ""),
):
    try:
        complete(name, retries)
    except kind as e:
        assert e.status_code == status and code in e.message, (e.status_code, e.message)
    else:
        raise AssertionError(f"no {kind.__name__}")
print("ok")
