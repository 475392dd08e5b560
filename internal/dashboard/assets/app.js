// The page: asks every second, follows decisions while they are looked at, and says when the picker cannot be reached.
import { $, h, sync } from './dom.js';
import { ask, json, lines, setToken, Refused } from './client.js';
import * as view from './view.js';

const every = 1000;
const most = 200; // decisions in the list
let chosen = new URLSearchParams(location.hash.slice(1)).get('pool') ?? '';
let live = null;
let failures = 0;
let past = null; // the last hour
let pastAt = 0;

// Status.

function link(kind, text) { $('link').className = `pill ${kind}`; $('link').textContent = text; }

// help leads to where a notice is explained, in the documentation that the picker names.
const help = (n) => live?.docs && h('a', { class: 'help', href: live.docs + (n.help ?? 'troubleshooting.md#by-condition'), target: '_blank', rel: 'noreferrer' }, 'What to do', h('span', { class: 'hidden' }, ` about: ${n.text.slice(0, 60)} (opens the documentation)`));

function notices(list) {
  const text = list.map((n) => n.text).join('\n');
  if ($('notices').dataset.text === text) return; // said already
  $('notices').dataset.text = text;
  $('notices').replaceChildren(...list.map((n) => h('p', { class: `notice ${n.bad ? 'bad' : ''}` }, n.text, ' ', help(n) || null)));
}

function draw() {
  const pools = live.pools ?? [];
  const key = (p) => `${p.namespace}/${p.name}`;
  const select = $('pool');
  sync(select, pools, key, (p) => h('option', { value: key(p) }, key(p)));
  select.disabled = pools.length < 2;
  const pool = pools.find((p) => key(p) === chosen) ?? pools[0];
  select.value = pool ? key(pool) : '';
  const list = [];
  if (!live.ready) list.push({ text: live.notReady, bad: true, help: 'troubleshooting.md#requests-get-503' });
  for (const text of live.problems ?? []) list.push({ text, bad: true, help: 'standalone.md#changes' });
  for (const text of pool?.degraded ?? []) list.push({ text });
  if (!pool) list.push({ text: 'There is no pool yet.', help: 'quickstart.md' });
  notices(list);
  $('version').textContent = live.version ?? '';
  $('version').title = `Kvasir ${live.version}, running since ${live.started}`;
  $('replica').textContent = pool ? `${live.picker} · ${pool.model} · ${pool.strategy}${pool.policy ? ` (${pool.policy})` : ''}` : live.picker;
  if (!pool) { for (const id of ['tiles', 'progress', 'pods']) $(id).replaceChildren(); $('pods-empty').hidden = false; return; }
  view.tiles(pool, Date.parse(live.time) / 1000, past?.pools.find((p) => p.namespace === pool.namespace && p.name === pool.name)?.points ?? [], past?.seconds);
  view.progress(pool);
  view.pods(pool, $('pods-filter').value);
  view.responses(pool);
  view.hooks(pool);
  view.routes(live.routes, pool);
  view.shadows(pool);
  if (!$('body').value) $('body').value = JSON.stringify({ model: pool.model, messages: [{ role: 'user', content: 'What is it about?' }] }, null, 2);
}

async function refresh() {
  try {
    live = (await json('/status?output=json', { signal: AbortSignal.timeout(5000) })).live;
    failures = 0;
    $('main').classList.remove('stale');
    if (Date.now() - pastAt > 10 * every) {
      past = await json('/history', { signal: AbortSignal.timeout(5000) });
      pastAt = Date.now();
    }
    link('good', 'Live');
    draw();
    if (current === 'prefixes') view.prefixes((await json('/prefixes?limit=30')).prefixes);
  } catch (e) {
    if (e instanceof Refused && (e.code === 401 || e.code === 403)) { link('bad', 'Not allowed'); await login(e); return; }
    failures++;
    $('main').classList.toggle('stale', live != null);
    link(failures > 3 ? 'bad' : 'wait', failures > 3 ? 'Disconnected' : 'Reconnecting');
    if (failures > 3) {
      const since = live ? `What you see is of ${new Date(live.time).toLocaleTimeString([], { hour12: false })}.` : 'Nothing has been heard of it yet.';
      notices([{ text: `The picker does not answer. ${since} Trying again every second.`, bad: true, help: 'troubleshooting.md#the-page' }]);
    }
  }
}

async function loop() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, every));
  }
}

// login asks for a token until one is good.
function login(refused) {
  $('login-fault').textContent = refused.code === 403 || $('token').value ? refused.message : '';
  $('token').value = '';
  return new Promise((done) => {
    $('login-form').addEventListener('submit', () => { setToken($('token').value); done(); }, { once: true });
    if (!$('login').open) $('login').showModal();
  });
}
$('login').addEventListener('cancel', (e) => e.preventDefault());

// Decisions.

const decisions = new Map(); // by ID
let following = null;
let paused = false;
let drawn = false;

function take(d) {
  decisions.set(d.id, d);
  while (decisions.size > most) decisions.delete(decisions.keys().next().value);
  if (!paused && !drawn) { drawn = true; setTimeout(drawDecisions, 250); }
}

function drawDecisions() {
  drawn = false;
  if (paused) return;
  const wanted = $('decisions-filter').value;
  const list = [...decisions.values()].filter((d) => view.shows(d, wanted)).sort((a, b) => b.id - a.id);
  $('decisions-empty').hidden = list.length > 0 || wanted !== '';
  $('list-head').hidden = list.length === 0;
  sync($('list'), list, (d) => d.id, view.decision, (li, d) => { if (li.decision !== d) view.updateDecision(li, d); });
  const passed = list.slice(0, 50).reduce((n, d) => n + d.passed, 0);
  $('decisions-note').textContent = passed ? `The latest first; ${passed} of the latest ${passed + Math.min(50, list.length)} were passed over.` : 'The latest first, with every candidate.';
}

async function follow() {
  const mine = following = new AbortController();
  while (following === mine) {
    try {
      decisions.clear(); // a picker that was restarted counts from 1 again
      await lines('/decisions?follow=1&limit=50', mine.signal, take);
    } catch { /* the status says what is wrong */ }
    await new Promise((done) => setTimeout(done, every));
  }
}

$('decisions-filter').addEventListener('input', drawDecisions);
$('pods-filter').addEventListener('input', () => { if (live) draw(); });

function unfollow() { const f = following; following = null; f?.abort(); }

$('pause').addEventListener('click', () => {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', String(paused));
  $('pause').textContent = paused ? 'Resume' : 'Pause';
  drawDecisions();
});

// Explain.

$('ask').addEventListener('submit', async (e) => {
  e.preventDefault();
  const out = $('explained');
  out.replaceChildren(h('p', { class: 'quiet' }, 'Asking …'));
  try {
    const answer = await ask(`/explain?path=${encodeURIComponent($('path').value)}`, { method: 'POST', body: $('body').value, headers: { 'Content-Type': 'application/json' } });
    const x = await answer.json();
    out.replaceChildren(h('p', { class: 'verdict' }, ...view.verdict(x)), ...(x.candidates.length ? view.candidates(x) : []));
  } catch (fault) {
    out.replaceChildren(h('p', { class: 'notice bad' }, fault instanceof Refused ? `${fault.code}: ${fault.message}` : 'The picker does not answer.'));
  }
});

// Tabs and theme.

const tabs = [...document.querySelectorAll('[role=tab]')];
let current = 'overview';

function show(tab, focus) {
  for (const t of tabs) {
    const on = t === tab;
    t.setAttribute('aria-selected', String(on));
    t.tabIndex = on ? 0 : -1;
    $(t.getAttribute('aria-controls')).hidden = !on;
  }
  current = tab.getAttribute('aria-controls');
  if (focus) tab.focus();
  mark();
  if (current === 'decisions') { if (!following) follow(); } else unfollow();
}

function mark() {
  const at = new URLSearchParams({ view: current });
  if (chosen) at.set('pool', chosen);
  history.replaceState(null, '', `#${at}`);
}

for (const [i, tab] of tabs.entries()) {
  tab.addEventListener('click', () => show(tab));
  tab.addEventListener('keydown', (e) => {
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    show(tabs[(to + tabs.length) % tabs.length], true);
  });
}

$('pool').addEventListener('change', (e) => { chosen = e.target.value; mark(); draw(); });

const themes = ['system', 'light', 'dark'];
function theme(t) {
  if (t === 'system') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = t;
  $('theme').textContent = `Theme: ${t}`;
  localStorage.setItem('theme', t);
}
$('theme').addEventListener('click', () => theme(themes[(themes.indexOf(localStorage.getItem('theme') ?? 'system') + 1) % themes.length]));
theme(themes.includes(localStorage.getItem('theme')) ? localStorage.getItem('theme') : 'system');

const wanted = new URLSearchParams(location.hash.slice(1)).get('view');
show(tabs.find((t) => t.getAttribute('aria-controls') === wanted) ?? tabs[0]);
loop();
