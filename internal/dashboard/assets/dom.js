// Small helpers. Text is always set as text: nothing that a server says becomes markup.

export const $ = (id) => document.getElementById(id);

// h makes an element: h('p', {class: 'quiet', onclick: f}, 'text', child, ...). Children that are null are left out.
export function h(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) e.addEventListener(name.slice(2), value);
    else if (value === true) e.setAttribute(name, '');
    else if (value !== false && value != null) e.setAttribute(name, value);
  }
  e.append(...children.flat().filter((c) => c != null));
  return e;
}

// width sets the width of a part of a bar; the content policy allows no style attributes.
export function width(e, part) {
  e.style.width = `${Math.max(0, Math.min(1, part || 0)) * 100}%`;
  return e;
}

// sync makes parent's children those of items, in their order. What is there already is updated and keeps its focus.
export function sync(parent, items, key, make, update) {
  const before = new Map([...parent.children].map((e) => [e.dataset.key, e]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const k = String(key(item));
    let e = before.get(k);
    if (e) before.delete(k);
    else { e = make(item); e.dataset.key = k; }
    update?.(e, item);
    if (e === at) at = at.nextElementSibling;
    else parent.insertBefore(e, at);
  }
  for (const e of before.values()) e.remove();
}

export const percent = (part, of, digits = 1) => (of > 0 ? `${(100 * part / of).toFixed(digits)} %` : '–');
export const whole = (n) => Math.round(n).toLocaleString('en');
export const count = (n, what) => `${whole(n)} ${what}${Math.round(n) === 1 ? '' : 's'}`;

// short writes large numbers with three digits.
export function short(n) {
  for (const [size, unit] of [[1e9, ' G'], [1e6, ' M'], [1e4, ' k']]) {
    if (Math.abs(n) >= size) { const v = n / (unit === ' k' ? 1e3 : size); return v.toFixed(v < 100 ? 1 : 0) + unit; }
  }
  return whole(n);
}

// seconds writes a time with its unit.
export function seconds(s) {
  if (s == null || !Number.isFinite(s)) return '–';
  if (s === 0) return '0';
  const a = Math.abs(s);
  if (a < 1e-3) return `${(s * 1e6).toFixed(a < 1e-5 ? 1 : 0)} µs`;
  if (a < 1) return `${(s * 1e3).toFixed(a < 0.01 ? 1 : 0)} ms`;
  if (a < 120) return `${s.toFixed(a < 10 ? 2 : 1)} s`;
  return `${(s / 60).toFixed(1)} min`;
}

// value writes a term in its unit.
export function value(v, unit) {
  if (unit === 'seconds') return seconds(v);
  if (unit) return `${short(v)} ${unit}`;
  return Number(v.toPrecision(4)).toString();
}
