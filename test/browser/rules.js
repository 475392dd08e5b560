// What matters of accessibility here: everything that can be operated has a name, form fields have labels, ids are unique, headings of
// tables have a scope, images have an alternative, and text has the contrast of WCAG 2.1 AA (4.5 to 1). It gives what breaks a rule.
(() => {
  const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest('.hidden, .skip');
  const all = (s) => [...document.querySelectorAll(s)].filter(seen);
  const name = (e) => (e.getAttribute('aria-label') ?? '') + (e.labels ? [...e.labels].map((l) => l.textContent).join('') : '') + (e.matches('input, textarea, select') ? '' : e.textContent);
  const parts = (c) => { const n = c.match(/[0-9.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (let at = e; at; at = at.parentElement) { const c = parts(getComputedStyle(at).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
  const contrast = (e) => { const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); };
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  const texts = all('body *').filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && !e.closest(':disabled'));
  const bad = [
    ['has no name', all('button, a[href], input, select, textarea, summary, [role=img], [role=progressbar], [role=region]').filter((e) => !name(e).trim())],
    ['has no scope', all('th:not([scope])')],
    ['has too little contrast', texts.filter((e) => contrast(e) < 4.5)],
    ['has no alternative', all('img:not([alt])')],
  ].flatMap(([what, list]) => list.slice(0, 3).map((e) => what + ': ' + e.outerHTML.slice(0, 100)));
  return [...bad, ...ids.filter((id, i) => ids.indexOf(id) !== i).map((id) => 'twice: ' + id)].join('\n');
})()
