#!/usr/bin/env python3
"""Makes prompts of requests as vLLM does, with Python's Jinja2 and pydantic: lines of {"route", "body"} on stdin become
lines of {"route", "body", "text", "special"} on stdout. requests.mjs makes ids of them.

    python3 hack/goldens/requests.py TOKENIZER_CONFIG.json < requests.jsonl

The release of vLLM is the one that the simulated engine answers as by default, 0.32.
"""

import json
import sys

import chatprompt
import chattemplate

RELEASE = 32
SPECIAL = ["bos_token", "eos_token", "unk_token", "pad_token"]


def main():
    with open(sys.argv[1]) as f:
        config = json.load(f)
    tokens = {name: config[name] for name in SPECIAL if isinstance(config.get(name), str)}
    for line in sys.stdin:
        request = json.loads(line)
        body = json.loads(request["body"])
        if request["route"] == "completions":
            text, special = body["prompt"], body.get("add_special_tokens", True)
        else:
            given = chatprompt.variables(body, RELEASE, False)
            result = chattemplate.render(config["chat_template"], {**tokens, **given})
            if "err" in result:
                sys.exit(f"{request['body']}: {result['err']}")
            text, special = result["out"], body.get("add_special_tokens", False)
        print(json.dumps({**request, "text": text, "special": special}, ensure_ascii=False))


if __name__ == "__main__":
    main()
