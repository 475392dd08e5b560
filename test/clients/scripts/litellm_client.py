"""litellm: a call, a stream, and errors as its own classes."""
import os

import litellm

url, model = os.environ["KVASIR_URL"], os.environ["KVASIR_MODEL"]
litellm.telemetry = False
say = [{"role": "user", "content": "Say something."}]


def complete(name, **more):
    return litellm.completion(model="hosted_vllm/" + name, api_base=url + "/v1", api_key="none", messages=say, max_tokens=8,
                              num_retries=0, max_retries=0, **more)


assert complete(model).choices[0].message.content
assert "".join(c.choices[0].delta.content or "" for c in complete(model, stream=True))
for name, kind in (("no-such-model", litellm.NotFoundError), ("nobody-serves-this", litellm.ServiceUnavailableError)):
    try:
        complete(name)
    except kind as e:
        assert e.message, e
    else:
        raise AssertionError(f"no {kind.__name__}")
print("ok")
