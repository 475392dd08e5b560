// Makes internal/tokens/tokenizer/testdata/spm and spm.jsonl.gz: a small vocabulary in the style of sentencepiece, learnt from
// texts of this repository, and goldens for it under the rules of Llama-2, Mistral, Gemma and some that nobody uses.
// node spm.mjs DIRECTORY FILE [CASES]

import { mkdirSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { Tokenizer, ids, wellFormed, writeLines } from "./lib.mjs";
import { documents, longer, made, random } from "./texts.mjs";

const [dir, target, cases = 150] = process.argv.slice(2);
const mark = "▁";

// learn finds merges by counting pairs in words.
function learn(text, rounds) {
  const counts = new Map();
  for (const w of text.split(" ")) counts.set(mark + w, (counts.get(mark + w) ?? 0) + 1);
  const words = [...counts].map(([w, n]) => ({ parts: [...w], n }));
  const merges = [];
  for (let round = 0; round < rounds; round++) {
    const pairs = new Map();
    for (const { parts, n } of words) for (let i = 0; i + 1 < parts.length; i++) {
      const k = parts[i] + "\0" + parts[i + 1];
      pairs.set(k, (pairs.get(k) ?? 0) + n);
    }
    let best, most = 1;
    for (const [k, n] of pairs) if (n > most || n === most && k < best) [best, most] = [k, n];
    if (!best) break;
    const [a, b] = best.split("\0");
    merges.push([a, b]);
    for (const w of words) for (let i = 0; i + 1 < w.parts.length; i++) {
      if (w.parts[i] === a && w.parts[i + 1] === b) w.parts.splice(i, 2, a + b);
    }
  }
  return merges;
}

const docs = documents(new URL("../../", import.meta.url), ["LICENSE", "hack/goldens/texts.mjs"]);
const corpus = docs.join(" ").replaceAll("\0", "");
const merges = [
  ...learn(corpus, 1000),
  // A run of marks, of line feeds, and a mark behind something else.
  [mark, mark], [mark + mark, mark + mark], ["\n", "\n"], ["\n\n", "\n"], [">", mark], [">" + mark, "a"], ["中", "文"], ["字", mark],
].filter(([a, b], i, all) => all.findIndex(([x, y]) => x === a && y === b) === i);

const vocab = {};
const put = (t) => { vocab[t] ??= Object.keys(vocab).length; };
["<unk>", "<s>", "</s>"].forEach(put);
for (let b = 0; b < 256; b++) put(`<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`);
merges.forEach(([a, b]) => put(a + b));
for (const c of [...new Set([...mark + corpus + "中文字<unk>0xABCDEF\t\r"])].filter((c) => c !== "é" && c !== "🙂" && c !== " ")) put(c);

const token = (content, flags = {}) => ({ id: vocab[content] ?? Object.keys(vocab).length + (flags.at ?? 0), content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...flags, at: undefined });
const prepend = { type: "Prepend", prepend: mark };
const replace = { type: "Replace", pattern: { String: " " }, content: mark };
const chain = (...normalizers) => ({ type: "Sequence", normalizers });
const metaspace = (prepend_scheme, split) => ({ type: "Metaspace", replacement: mark, prepend_scheme, split });
const afterSpaces = (pattern) => ({ type: "Split", pattern, behavior: "MergedWithPrevious", invert: false });
const usual = ["<unk>", "<s>", "</s>"].map((t) => token(t));
const someBytes = Object.fromEntries(Array.from({ length: 100 }, (_, b) => [`<0x${(b + 128).toString(16).toUpperCase()}>`, null]));
const template = { type: "TemplateProcessing", single: [{ SpecialToken: { id: "<s>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }], pair: [{ Sequence: { id: "A", type_id: 0 } }, { Sequence: { id: "B", type_id: 0 } }], special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } } };

const base = {
  version: "1.0", truncation: null, padding: null, added_tokens: usual, normalizer: chain(prepend, replace), pre_tokenizer: null, post_processor: template,
  decoder: { type: "Sequence", decoders: [{ type: "Replace", pattern: { String: mark }, content: " " }, { type: "ByteFallback" }, { type: "Fuse" }, { type: "Strip", content: " ", start: 1, stop: 0 }] },
  model: { type: "BPE", dropout: null, unk_token: "<unk>", continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: true, byte_fallback: true, ignore_merges: false, vocab, merges },
};

const flagged = [...usual, token("<|user|>", { rstrip: true }), token("<|end|>", { lstrip: true, at: 1 }), token("word", { single_word: true, special: false }),
  token(mark + "norm", { normalized: true, special: false, at: 2 }), token("Norm al", { normalized: true, special: false, at: 3 }), token("\n\n", { special: false })];

const variants = {
  "Llama-2": {},
  "Llama-2, other added tokens": { added_tokens: flagged },
  "without a prefix, other added tokens (Yi, Gemma-1)": { normalizer: replace, added_tokens: flagged },
  "Gemma": { normalizer: replace, pre_tokenizer: afterSpaces({ String: " " }) },
  "split behind spaces that stay": { normalizer: null, pre_tokenizer: afterSpaces({ Regex: " " }) },
  "Mistral": { normalizer: null, pre_tokenizer: metaspace("first", false) },
  "Mistral, other added tokens": { normalizer: null, pre_tokenizer: metaspace("first", false), added_tokens: flagged },
  "marks before all pieces": { normalizer: null, pre_tokenizer: metaspace("always", false), added_tokens: flagged },
  "words": { normalizer: null, pre_tokenizer: metaspace("always", true) },
  "words, first": { normalizer: null, pre_tokenizer: metaspace("first", true), added_tokens: flagged },
  "words, without a prefix": { normalizer: { type: "NFC" }, pre_tokenizer: metaspace("never", true) },
  "the old way to say it": { normalizer: null, pre_tokenizer: { type: "Metaspace", replacement: mark, str_rep: mark, add_prefix_space: true } },
  "NFC": { normalizer: chain({ type: "NFC" }, prepend, replace) },
  "unknown, together": { model: { byte_fallback: false } },
  "unknown, one by one": { model: { byte_fallback: false, fuse_unk: false } },
  "unknown, dropped": { model: { byte_fallback: false, unk_token: null } },
  "unknown mark": { model: { byte_fallback: false }, vocab: { [mark]: null } },
  "some bytes": { vocab: someBytes },
  "some bytes, one by one": { model: { fuse_unk: false }, vocab: someBytes },
  "some bytes, the rest dropped": { model: { unk_token: null }, vocab: someBytes },
  "merges of bytes": { vocab: { ["<0xC3>" + mark]: 5000, ["<0xC3><0xA9>"]: 5001, ["<0xA9>" + mark]: 5002 }, merges: [["<0xA9>", mark], ["<0xC3>", "<0xA9>"]] },
};

const filled = (m, { model = {}, vocab = {}, merges = [] }) => {
  const all = { ...m.vocab, ...vocab };
  for (const k in all) if (all[k] === null) delete all[k];
  const has = ([a, b]) => a in all && b in all && a + b in all;
  return { ...m, ...model, vocab: all, merges: [...m.merges.filter(has), ...merges] };
};

const lines = [];
for (const [i, [variant, { model, vocab, merges, ...fields }]] of Object.entries(variants).entries()) {
  const change = { model, vocab, merges };
  const file = { ...base, ...fields, model: filled(base.model, change) };
  const tokenizer = Tokenizer.fromString(JSON.stringify(file));
  lines.push({ variant, ...fields, ...change });
  const r = random(4711 + i);
  for (let n = 0; n < Number(cases);) {
    const text = made(r, 40, file.added_tokens.map((t) => t.content));
    if (!wellFormed(text)) continue;
    lines.push({ text, ids: await ids(tokenizer, text, false) });
    n++;
  }
}
writeLines(target, lines);

const tokenizer = Tokenizer.fromString(JSON.stringify(base));
const r = random(1);
const golden = [], fuzz = [];
for (const text of [...longer(r, usual.map((t) => t.content), docs.map((d) => d.slice(0, 1500))).filter((_, i) => i % 3 === 0)]) {
  if (wellFormed(text) && text.length < 4000) golden.push({ cat: "made", text, ids: await ids(tokenizer, text, false), ids_sp: await ids(tokenizer, text, true) });
}
while (fuzz.length < 300) {
  const text = made(r, 12, ["<s>"]);
  if (wellFormed(text)) fuzz.push({ text, ids: await ids(tokenizer, text, false) });
}
mkdirSync(dir, { recursive: true });
writeFileSync(`${dir}/tokenizer.json.gz`, gzipSync(JSON.stringify(base), { level: 9 }));
writeFileSync(`${dir}/tokenizer_config.json`, JSON.stringify({ tokenizer_class: "LlamaTokenizer", add_bos_token: true, add_eos_token: false, bos_token: "<s>", eos_token: "</s>", legacy: true }) + "\n");
writeLines(`${dir}/golden.jsonl.gz`, golden);
writeLines(`${dir}/fuzz.jsonl.gz`, fuzz);
console.log(`${Object.keys(vocab).length} tokens, ${merges.length} merges, ${lines.length} lines, ${golden.length} goldens`);
