#!/usr/bin/env python3
"""Renders the chat templates of models, as the first half of end-to-end goldens; endtoend.mjs adds the ids.

    python3 hack/goldens/endtoend.py DIR MODEL...

DIR holds MODEL/tokenizer_config.json, as models.mjs leaves it. It gets MODEL.jinja for those that have a template, and
end-to-end.jsonl: {model, tmpl, case, ctx, prompt} or {..., err} for each of the conversations of chattemplate.py. It needs
Jinja2.
"""

import json
import os
import sys

from chattemplate import CASES, render


def text(token):
    return token["content"] if isinstance(token, dict) else token


def main():
    out, models = sys.argv[1], sys.argv[2:]
    with open(os.path.join(out, "end-to-end.jsonl"), "w") as lines:
        for model in models:
            with open(os.path.join(out, model, "tokenizer_config.json")) as f:
                config = json.load(f)
            template = config.get("chat_template")
            if not isinstance(template, str):
                continue
            with open(os.path.join(out, model + ".jinja"), "w", newline="") as f:
                f.write(template)
            tokens = {k: text(config[k]) for k in ("bos_token", "eos_token", "unk_token", "pad_token") if config.get(k)}
            for case, members in CASES.items():
                context = {"tools": None, "documents": None, "add_generation_prompt": True, **tokens, **members}
                result = render(template, context)
                result = {"prompt": result["out"]} if "out" in result else result
                golden = {"model": model, "tmpl": model + ".jinja", "case": case, "ctx": context, **result}
                lines.write(json.dumps(golden, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
