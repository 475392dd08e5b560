// Texts that a tokenizer may get wrong: made up from a seed, the same on every machine.

import { readFileSync } from "node:fs";

// random is a small generator of numbers below n (mulberry32).
export function random(seed) {
  let a = seed >>> 0;
  const next = () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = a;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (t ^ (t >>> 14)) >>> 0;
  };
  return (n) => next() % n;
}

const words = (
  "the quick brown fox jumps over lazy dogs while routers keep serving tokens from cached prefixes of many conversations " +
  "Kubernetes vLLM HTTPServer iPhone McDonald camelCaseName SCREAMING_SNAKE x86_64 C3PO naïve café Straße Ünïcödé façade " +
  "internationalization antidisestablishmentarianism a I of to in is it we'll didn't I'M they'Re it'ſ o'clock 'S 'lL 'd 've " +
  "привет мир Здравствуйте ελληνικά ΑΒΓ ǅungla ǆ Ǆ İstanbul ﬁne ﬀ Ⅳ ⅷ ª º ʰʲ 한국어 안녕하세요 ภาษาไทย हिन्दी தமிழ் বাংলা العربية مرحبا עברית " +
  "日本語のテキスト カタカナ カ・タ゛カナ゠ ひらがな 漢字 漢⺀字〇⼀ 中文字符测试 你好世界 龥龦 𠮷野家 々〆 ㍿ ｶﾞｷﾞ Tiếng Việt ქართული ᲐᲑᲒ አማርኛ"
).split(" ");

const symbols = [
  "!", "?", ".", ",", ";", ":", "...", "…", "-", "--", "—", "_", "__", "(", ")", "[", "]", "{", "}", "()", "{}", "[]", "<", ">", "=", "==", "=>", "->", "!=",
  "+", "*", "/", "//", "/*", "*/", "\\", "\\n", "|", "||", "&", "&&", "@", "#", "$", "%", "^", "~", "`", "```", '"', "'", "''", "‘", "’", "“", "”", "«", "»",
  "。", "，", "、", "！", "？", "「", "」", "・", "۔", "،", "।", "•", "→", "≠", "≤", "∑", "√", "°", "©", "™", "€", "£", "¥", "№", "§", "½", "²", "³", "¹",
  "🙂", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "\u200d", "\ufe0f", "\u200b", "\u00ad", "\ufeff", "\ufffd", "▁", "▁▁", "Ġ", "Ċ", "⺀", "㐂",
];

const spaces = [" ", "  ", "   ", "    ", "        ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", "\n  ", "\t\n", " \t ",
  "\u00a0", "\u3000", "\u2003", "\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\u001c", "\u1680", "\u202f", "\u205f"];

const digits = ["0", "1", "12", "123", "1234", "12345678901", "3.14159", "1,000,000", "2024-01-31", "0x1F", "٣٤٥", "१२३", "１２３", "𝟘𝟙𝟚", "Ⅻ", "①②", "½", "〇一二", "๑๒๓", "\u{11de0}\u{11de1}"];

const marks = ["\u0301", "\u0300", "\u0308", "\u0323", "\u0315", "\u05ae", "\u0345", "\u20d0", "\u3099", "\u309a", "\u0e31", "\u0e49", "\u093f", "\u094d", "\u064b", "\u0591", "\u1ab0", "\u034f", "\u0f71", "\u0f72"];

const odd = ["\u1100\u1161\u11a8", "\uac00\u11a8", "\u1112\u1175", "\u212b", "\u2126", "\u1e9b\u0323", "\u0958", "\u0344", "\u2f868", "\u0f73", "e\u0301", "\u0041\u030a", "か\u3099",
  "<0x0A>", "<0xFF>", "<unk>", "<s>", "</s>", "<pad>", "<|endoftext|>", "<|im_start|>", "<|", "|>", "<bos>", "<", "[INST]", "[/INST]", "<｜", "▁the", "a▁b", ">▁", "> ", "\0", "\x01", "\x7f", "\x80"];

const code = [
  "for i := 0; i < len(xs); i++ {\n\tsum += xs[i]\n}\n",
  "def f(self, *args, **kwargs):\n    return [x ** 2 for x in self.items if x is not None]\n\n",
  "SELECT name, COUNT(*) AS n FROM users WHERE age >= 18 GROUP BY name ORDER BY n DESC LIMIT 10;\n",
  '{"name": "kvasir", "ports": [8000, 9000], "ok": true, "ratio": 0.75, "none": null}\n',
  '<div class="a b">\n  <p>Hello,&nbsp;<b>world</b>!</p>\n</div>\n',
  "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 42); return 0; }\n",
  "https://example.com/path/to?query=1&x=%20#frag user@example.org /usr/local/bin\n",
  "| a | b |\n|---|---|\n| 1 | 2 |\n\n- item\n  - nested\n\n1. one\n2. two\n\n> quote\n",
];

// scalar is any code point that a text can have, the low ones more often.
function scalar(r) {
  const limit = [0x80, 0x250, 0x1000, 0x3100, 0xa000, 0x10000, 0x20000, 0x110000][r(8)];
  for (;;) {
    const c = r(limit);
    if (c < 0xd800 || c > 0xdfff) return String.fromCodePoint(c);
  }
}

// made is one text of up to about n parts; added are the model's own added tokens.
export function made(r, n, added) {
  const pick = (list) => list[r(list.length)];
  let out = "";
  const style = r(6);
  for (let left = 1 + r(n); left > 0; left--) {
    switch (r(style === 0 ? 12 : 10)) {
      case 0: case 1: case 2: out += (r(2) ? " " : "") + pick(words); break;
      case 3: out += pick(symbols); break;
      case 4: out += pick(spaces); break;
      case 5: out += pick(digits); break;
      case 6: out += pick([words, symbols, digits][r(3)]) + pick(marks) + (r(4) ? "" : pick(marks)); break;
      case 7: out += style === 1 ? pick(code) : pick(words) + pick(symbols) + pick(words); break;
      case 8: out += style === 2 && added.length ? pick(spaces.slice(0, 4)).repeat(r(2)) + pick(added) + pick(spaces.slice(0, 4)).repeat(r(2)) : pick(odd); break;
      case 9: out += style === 3 ? pick([" ", "\n", "a", "-", "\t", "▁", "0", "中", "é", "!"]).repeat(1 + r(40)) : scalar(r); break;
      default: out += scalar(r) + scalar(r) + scalar(r);
    }
  }
  return out;
}

// longer are whole documents and what is hard about length.
export function longer(r, added, documents) {
  const out = [""];
  for (const d of documents) {
    out.push(d, d.slice(r(d.length >> 1), -1 - r(d.length >> 2)), d.replaceAll("\n", "\r\n"), d.replaceAll(" ", "\u3000"), d.replaceAll(" ", ""), d.toUpperCase());
  }
  for (let i = 0; i < 40; i++) out.push(made(r, 900, added));
  for (const c of ["a", " ", "\n", "\t", "ab", "A", "中", "中文字", "!", "<", "'", "é", "\u0301", "1", "🙂", "▁", "> ", "\n ", " \n", "x\u0301"]) {
    for (const n of [2, 3, 7, 16, 47, 48, 49, 65, 255, 1000]) out.push(c.repeat(n), "x" + c.repeat(n) + "y", c.repeat(n) + "word");
  }
  for (const t of added.slice(0, 40)) out.push(t, t + t, " " + t + " ", "a" + t + "b", t.slice(0, -1), t.slice(1), "\n" + t + "\nuser\nHello, world!" + t);
  return out;
}

// documents are texts of this repository, by their paths in it.
export function documents(root, paths) {
  return paths.map((p) => readFileSync(new URL(p, root), "utf8").slice(0, 12000));
}
