// Makes the ids of prompts with the reference library, and writes them where the end-to-end tests read them:
//
//	node requests.mjs TOKENIZER.json.gz OUT.jsonl.gz < prompts.jsonl
//
// A line of the output is {"route", "body", "ids"}.

import { gunzipSync } from "node:zlib";
import { readFileSync } from "node:fs";
import { Tokenizer, ids, writeLines } from "./lib.mjs";

const [from, to] = process.argv.slice(2);
const tokenizer = Tokenizer.fromString(gunzipSync(readFileSync(from)).toString());
const lines = [];
for (const line of readFileSync(0, "utf8").split("\n").filter((l) => l)) {
  const { route, body, text, special } = JSON.parse(line);
  lines.push({ route, body, ids: Array.from(await ids(tokenizer, text, special)) });
}
writeLines(to, lines);
