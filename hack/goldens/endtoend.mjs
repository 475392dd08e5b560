// Adds ids to what endtoend.py has rendered: node endtoend.mjs DIR
// DIR/end-to-end.jsonl becomes DIR/end-to-end.jsonl.gz.

import { readFileSync } from "node:fs";
import { Tokenizer, ids, packaged, writeText } from "./lib.mjs";

const [dir] = process.argv.slice(2);
const tokenizers = new Map();
const lines = [];
for (const line of readFileSync(`${dir}/end-to-end.jsonl`, "utf8").split("\n").filter(Boolean)) {
  const golden = JSON.parse(line);
  if (golden.prompt !== undefined) {
    if (!tokenizers.has(golden.model)) tokenizers.set(golden.model, Tokenizer.fromString(packaged(golden.model, "tokenizer.json").toString()));
    golden.ids = await ids(tokenizers.get(golden.model), golden.prompt, false);
  }
  // The line as Python wrote it, with the ids at its end: JavaScript reads some numbers as others.
  lines.push(golden.ids ? `${line.slice(0, -1)}, "ids": ${JSON.stringify(golden.ids)}}\n` : line + "\n");
}
writeText(`${dir}/end-to-end.jsonl.gz`, lines.join(""));
console.log(`${lines.length} conversations of ${tokenizers.size} models with templates`);
