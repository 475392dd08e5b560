#!/usr/bin/python3
"""Makes a small model of a large one, for internal/tokens/tokenizer/testdata: the tokens that occur in the texts of its goldens.

    python3 hack/goldens/small.py FROM TO

FROM has tokenizer.json.gz, golden.jsonl.gz and fuzz.jsonl.gz of a byte-level model that does not normalize, as
KEEP=DIR hack/goldens/run.sh leaves them in DIR/goldens; TO gets the same files. A merge joins two neighbours within a
text, so that of a token that is part of no text nothing is ever seen: the ids of these texts are those of the whole
model, and a number in the small one is the same token's as in the large one.
"""

import gzip
import json
import os
import sys


def characters():
    """The characters that stand for bytes in such a vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def read(path):
    with gzip.open(path) as f:
        return f.read().decode()


def write(path, text):
    with open(path, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0) as z:
        z.write(text.encode())


def main(source, target):
    os.makedirs(target, exist_ok=True)
    files = {name: read(f"{source}/{name}.jsonl.gz") for name in ("golden", "fuzz")}
    spelt = characters()
    texts = {json.loads(line)["text"] for text in files.values() for line in text.split("\n") if line}
    joined = "\n".join("".join(spelt[b] for b in text.encode()) for text in sorted(texts))
    small = json.loads(read(f"{source}/tokenizer.json.gz"))
    model = small["model"]
    if small.get("normalizer") not in (None, {"type": "Sequence", "normalizers": []}):
        sys.exit("the model changes texts before it cuts them")
    parts = {joined[i : i + n] for n in range(1, 17) for i in range(len(joined) - n + 1)}
    model["vocab"] = {
        token: number
        for token, number in model["vocab"].items()
        if len(token) == 1 or (token in parts if len(token) <= 16 else token in joined)
    }
    model["vocab"] |= {token["content"]: token["id"] for token in small["added_tokens"]}  # else they get the next numbers
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    kept = [i for i, pair in enumerate(pairs) if all(part in model["vocab"] for part in (*pair, "".join(pair)))]
    model["merges"] = [model["merges"][i] for i in kept]
    write(f"{target}/tokenizer.json.gz", json.dumps(small, ensure_ascii=False, separators=(",", ":")))
    for name, text in files.items():
        write(f"{target}/{name}.jsonl.gz", text)


if __name__ == "__main__":
    main(*sys.argv[1:])
