// Makes goldens of models: node models.mjs OUT FUZZ MODEL...
// OUT gets a directory per model with what internal/tokens/tokenizer's tests read: tokenizer.json.gz, tokenizer_config.json,
// golden.jsonl.gz (ids without and with what stands around a text) and fuzz.jsonl.gz (FUZZ random texts).
// SEED in the environment makes other texts.

import { mkdirSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { Tokenizer, ids, packaged, wellFormed, writeLines } from "./lib.mjs";
import { documents, longer, made, random } from "./texts.mjs";

const [out, fuzz, ...models] = process.argv.slice(2);
const docs = documents(new URL("../../", import.meta.url), ["CONTRIBUTING.md", "LICENSE", "Makefile", "internal/tokens/tokenizer/bpe.go", "internal/tokens/tokenizer/scan.go", "hack/goldens/texts.mjs"]);

for (const [i, model] of models.entries()) {
  const file = packaged(model, "tokenizer.json");
  const tokenizer = Tokenizer.fromString(file.toString());
  const added = JSON.parse(file).added_tokens.map((t) => t.content);
  const r = random(Number(process.env.SEED ?? 20240) + i);
  const golden = [];
  for (const text of [...longer(r, added, docs), ...Array.from({ length: 1500 }, () => made(r, 60, added))]) {
    if (wellFormed(text)) golden.push({ cat: "made", text, ids: await ids(tokenizer, text, false), ids_sp: await ids(tokenizer, text, true) });
  }
  const lines = [];
  while (lines.length < Number(fuzz)) {
    const text = made(r, 12, added);
    if (wellFormed(text)) lines.push({ text, ids: await ids(tokenizer, text, false) });
  }
  const dir = `${out}/${model}`;
  mkdirSync(dir, { recursive: true });
  writeFileSync(`${dir}/tokenizer.json.gz`, gzipSync(file, { level: 1 }));
  writeFileSync(`${dir}/tokenizer_config.json`, packaged(model, "tokenizer_config.json"));
  writeLines(`${dir}/golden.jsonl.gz`, golden);
  writeLines(`${dir}/fuzz.jsonl.gz`, lines);
  console.log(`${model}: ${golden.length} goldens, ${lines.length} random texts`);
}
