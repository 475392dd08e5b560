// Makes internal/tokens/tokenizer/testdata/splits.jsonl.gz: GPT-2's vocabulary under the splitting rules of other models.
// node splits.mjs FILE [CASES]

import { Tokenizer, ids, packaged, wellFormed, writeLines } from "./lib.mjs";
import { made, random } from "./texts.mjs";

const [target, cases = 120] = process.argv.slice(2);

const isolated = (Regex) => ({ type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false });
const removed = (Regex) => ({ type: "Split", pattern: { Regex }, behavior: "Removed", invert: true });
const digits = (individual_digits) => ({ type: "Digits", individual_digits });
const bytes = (use_regex) => ({ type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex });
const chain = (...pretokenizers) => ({ type: "Sequence", pretokenizers });

const contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const tail = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const cl100k = (n) => `${contraction}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${n}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${tail}`;
const words = (u, w, c) => `[^\\r\\n\\p{L}\\p{N}]?${u}*${w}+${c}|[^\\r\\n\\p{L}\\p{N}]?${u}+${w}*${c}`;
const u = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", w = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
const uNoHan = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]", wNoHan = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]";
const o200k = `${words(u, w, contraction + "?")}|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${tail}`;
const cjk = "[一-龥\u3040-ゟ゠-ヿ]+";
const deepSeek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+";
const nfc = { type: "NFC" };

const variants = {
  "digits one by one (StarCoder, SmolLM)": { pre_tokenizer: chain(digits(true), bytes(true)) },
  "digits one by one, NFC (Command-R)": { normalizer: nfc, pre_tokenizer: chain(digits(true), bytes(true)) },
  "digits together": { pre_tokenizer: chain(digits(false), bytes(true)) },
  "Qwen3.5": { normalizer: nfc, pre_tokenizer: chain(isolated(`${contraction}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${tail}`), bytes(false)) },
  "Kimi-K2": { pre_tokenizer: chain(isolated(`[\\p{Han}]+|${words(uNoHan, wNoHan, contraction + "?")}|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${tail}`), bytes(false)) },
  "cl100k, what does not match removed (Phi-4, OLMo)": { pre_tokenizer: chain(removed(cl100k("\\p{N}{1,3}")), bytes(false)) },
  "o200k, what does not match removed (MiniMax-M2)": { pre_tokenizer: chain(removed(o200k), bytes(false)) },
  "MiniCPM5": { pre_tokenizer: chain(isolated("\\p{N}{1,3}"), isolated(cl100k("\\p{N}+")), bytes(false)) },
  "lines first (Laguna)": { pre_tokenizer: chain({ ...isolated("(?:\\r?\\n)+(?!\\r?\\n)"), behavior: "MergedWithNext" }, isolated(cl100k("\\p{N}")), bytes(false)) },
  "LLaDA": { pre_tokenizer: chain(isolated("'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"), bytes(false)) },
  "Zeta": { pre_tokenizer: chain(isolated(`${contraction}|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+`), bytes(false)) },
  "Spark-X2.5": { pre_tokenizer: chain(isolated("\\p{N}{1,3}"), isolated(cjk), isolated(deepSeek + "|[\r\n]|\\s+(?!\\S)|\\s+"), digits(true), bytes(false)) },
  "CJK before Qwen2's": { pre_tokenizer: chain(isolated(cjk), isolated(cl100k("\\p{N}")), bytes(false)) },
  "DeepSeek-Coder": { pre_tokenizer: chain(isolated("[\r\n]"), isolated("\\s?\\p{L}+"), isolated("\\s?\\p{P}+"), isolated("[一-龥\u0800-一가-\ud7ff]+"), digits(true), bytes(false)) },
  "Bloom": { pre_tokenizer: chain(isolated(" ?[^(\\s|[.,!?…。，、।۔،])]+"), bytes(false)) },
};

const base = JSON.parse(packaged("gpt2", "tokenizer.json"));
const added_tokens = base.added_tokens.map((t) => ({ ...t, normalized: false }));
const lines = [];
for (const [i, [variant, fields]] of Object.entries(variants).entries()) {
  const replaced = { normalizer: null, ...fields, added_tokens };
  const tokenizer = Tokenizer.fromString(JSON.stringify({ ...base, ...replaced }));
  lines.push({ variant, ...replaced });
  const r = random(777 + i);
  for (let n = 0; n < Number(cases);) {
    const text = made(r, 40, ["<|endoftext|>"]);
    if (!wellFormed(text)) continue;
    lines.push({ text, ids: await ids(tokenizer, text, false) });
    n++;
  }
}
writeLines(target, lines);
