// What the programs here share: the reference library, and files of lines.

import { createRequire } from "node:module";
import { gzipSync } from "node:zlib";
import { writeFileSync, readFileSync } from "node:fs";

// The packages lie where run.sh has put them.
const require = createRequire(process.env.GOLDENS_MODULES + "/");

export const { Tokenizer } = require("tokenizers");

// packaged reads a file of a model's package.
export const packaged = (model, file) => readFileSync(`${process.env.GOLDENS_MODULES}/node_modules/@lenml/tokenizer-${model}/models/${file}`);

// ids by the reference library.
export async function ids(tokenizer, text, addSpecialTokens) {
  return (await tokenizer.encode(text, null, { addSpecialTokens })).getIds();
}

// wellFormed: JavaScript can hold halves of surrogate pairs, a request cannot.
export const wellFormed = (text) => text.isWellFormed();

export const writeText = (path, text) => writeFileSync(path, gzipSync(text, { level: 9 }));

export const writeLines = (path, lines) => writeText(path, lines.map((l) => JSON.stringify(l) + "\n").join(""));
