// What is drawn, from what the picker answers (internal/dashboard/api).
import { $, h, width, sync, percent, whole, count, short, seconds, value } from './dom.js';

const phases = { Serving: 'good', Draining: 'wait', NotReady: 'wait', Circuit: 'bad' };
const reasonNames = { Unreachable: 'unreachable', NotAnswering: 'not answering' };
const phaseName = (p) => reasonNames[p.reason] ?? phaseNames[p.phase] ?? p.phase;
const phaseNames = { Serving: 'serving', Draining: 'draining', NotReady: 'not ready', Circuit: 'kept out' };
const sum = (list, f) => list.reduce((n, x) => n + f(x), 0);

let previous = { requests: 0, time: 0, key: '' };

// rateOf is the requests per second since the pool was drawn the last time.
function rateOf(pool, time) {
  const key = `${pool.namespace}/${pool.name}`;
  let rate = null;
  if (previous.key === key && time > previous.time) rate = (pool.requests - previous.requests) / (time - previous.time);
  previous = { requests: pool.requests, time, key };
  return rate;
}

// spark draws a field of the last hour's points over the whole width, or over less than that if there are but a few; what was not
// measured (-1) is left out.
function spark(points, field, top) {
  const list = points.map((p) => p[field]);
  const most = Math.max(top ?? 0, ...list) || 1;
  const wide = Math.max(list.length, 12) - 1;
  const ns = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(ns, 'svg');
  svg.setAttribute('class', 'spark');
  svg.setAttribute('viewBox', `0 0 ${wide} 34`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-hidden', 'true');
  const p = document.createElementNS(ns, 'path');
  let line = '';
  let pen = false; // down
  for (const [x, v] of list.entries()) {
    if (v >= 0) line += `${pen ? 'L' : 'M'}${wide - list.length + 1 + x} ${(33 - 32 * v / most).toFixed(1)}`;
    pen = v >= 0;
  }
  p.setAttribute('d', line);
  svg.append(p);
  return svg;
}

export function tiles(pool, time, points, step) {
  const rate = rateOf(pool, time);
  const r = pool.recent.answers > 0 ? pool.recent : pool.hits;
  const span = pool.recent.answers > 0 ? 'last minute' : 'since the start';
  const inFlight = sum(pool.pods, (p) => sum(p.endpoints, (e) => e.inFlight));
  const queued = sum(pool.pods, (p) => sum(p.endpoints, (e) => e.waiting));
  const failed = pool.outcomes.failed ?? 0;
  const gone = pool.outcomes.client_gone ?? 0;
  const picked = pool.recent.picks > 0 ? pool.recent : pool.hits;
  const told = r.untold > 0 ? `${whole(r.answers)} of ${whole(r.answers + r.untold)} answers report them` : 'of prompt tokens';
  const all = [
    ['Delivered hits', percent(r.delivered, r.prompt), `${told}, ${span}`, 'delivered', 1],
    ['Predicted hits', percent(picked.pickedPredicted, picked.pickedPrompt), `of all ${whole(picked.picks)} picks, ${pool.recent.picks > 0 ? 'last minute' : 'since the start'}`, 'predicted', 1],
    ['Divergence', percent(r.deviation, r.prompt, 2), 'predicted against delivered', 'divergence', 0.1],
    ['First token', pool.ttft ? seconds(pool.ttft.p50) : '–', pool.ttft ? `90 %: ${seconds(pool.ttft.p90)}, 99 %: ${seconds(pool.ttft.p99)}` : 'no streamed answers yet', 'firstToken'],
    ['Requests', rate == null ? '–' : `${rate.toFixed(rate < 10 ? 1 : 0)} /s`, `${whole(inFlight)} in flight, ${whole(pool.requests)} in all`, 'requests'],
    ['Queue', whole(pool.waiting + queued), `${whole(pool.waiting)} in the picker, ${whole(queued)} in engines`, 'queue'],
    ['Pods serving', `${pool.size.ready} / ${pool.size.desired ?? pool.size.pods}`, pool.size.draining ? `${pool.size.draining} draining` : 'none draining', 'serving'],
    ['Not served', whole(failed + pool.refused), `${whole(failed)} failed, ${whole(pool.refused)} refused${gone > 0 ? `, ${whole(gone)} left by clients` : ''}`, 'unserved'],
  ];
  const box = $('tiles');
  const now = all.map(([name, big, more, field, top]) => h('div', { class: 'tile' }, h('dl', {}, h('dt', {}, name), h('dd', {}, big)), h('p', { class: 'more' }, more), spark(points, field, top)));
  const minutes = Math.round(points.length * (step ?? 0) / 60);
  $('span').textContent = points.length > 1 ? `The lines show the last ${minutes < 2 ? `${points.length * step} seconds` : `${minutes} minutes`}; an hour is kept.` : 'Lines appear after 20 seconds; an hour is kept.';
  box.replaceChildren(...now);
}

export function progress(pool) {
  const items = [];
  const r = pool.rollout;
  if (r && r.reason !== 'UpToDate') {
    items.push(bar('Rollout', r.message || r.reason, r.replicas ? r.updated / r.replicas : 0, `${r.updated} of ${r.replicas} pods new`));
  }
  for (const p of pool.pods.filter((p) => p.phase === 'Draining')) {
    const left = sum(p.endpoints, (e) => e.inFlight);
    const key = p.uid;
    draining.set(key, Math.max(draining.get(key) ?? 0, left));
    const most = draining.get(key);
    items.push(bar(`Draining ${p.name}`, left ? `${left} ${left === 1 ? 'request' : 'requests'} to finish` : 'idle', most ? 1 - left / most : 1));
  }
  $('progress').replaceChildren(...items);
}
const draining = new Map(); // by pod: the most requests that were seen to be left

function bar(name, text, part, right) {
  return h('div', { class: 'progress' },
    h('p', {}, h('strong', {}, name), h('span', { class: 'quiet' }, right ? `${text} · ${right}` : text)),
    h('div', { class: 'track', role: 'progressbar', 'aria-label': name, 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': String(Math.round(100 * part)) }, width(h('i'), part)));
}

function fact(name, text, title) { return h('div', { title }, h('dt', {}, name), h('dd', {}, text)); }

export function pods(pool, wanted) {
  $('pods-empty').hidden = pool.pods.length > 0;
  $('pods-note').textContent = `${short(pool.blocks)} blocks known, ${short(pool.held)} held by pods`;
  const rows = pool.pods.filter((p) => has(wanted, p.name, p.island, phaseName(p))).flatMap((p) => p.endpoints.map((e) => ({ p, e })));
  sync($('pods'), rows, ({ p, e }) => `${p.uid}/${e.rank}`, () => h('li', { class: 'pod' }), (li, { p, e }) => {
    const capacity = e.capacity || Math.max(e.blocks, 1);
    const r = e.recent.answers > 0 ? e.recent : e.hits;
    const picked = e.recent.picks > 0 ? e.recent : e.hits;
    const fill = e.capacity ? `${percent(e.fill, 1, 0)} full` : 'capacity unknown';
    const words = `${p.name}: ${fill}, ${short(e.unique)} blocks only here, ${short(e.shared)} elsewhere too`;
    li.replaceChildren(
      h('header', {}, h('h3', { title: p.name }, p.name, p.endpoints.length > 1 ? h('small', {}, ` rank ${e.rank}`) : null, p.island ? h('small', {}, ` · ${p.island}`) : null),
        h('span', { class: `pill ${p.reason ? 'bad' : phases[p.phase] ?? ''}` }, phaseName(p))),
      h('div', { class: 'bar', role: 'img', 'aria-label': words },
        width(h('i', { class: 'unique' }), e.unique / capacity), width(h('i', { class: 'shared' }), e.shared / capacity), width(h('i', { class: 'in-use' }), e.kvUsage)),
      h('p', { class: 'caption' }, `${fill} · ${short(e.unique)} unique · ${short(e.shared)} shared blocks`),
      h('dl', { class: 'facts' },
        fact('In flight', `${e.inFlight}`, `${e.decoding} decoding`), fact('Queue', `${e.waiting}`), fact('To prefill', `${short(e.pendingTokens)} tok`),
        fact('Hit ratio', percent(r.delivered, r.prompt, 0), 'delivered'), fact('Predicted', percent(picked.pickedPredicted, picked.pickedPrompt, 0), 'of all picks'), fact('Speed', e.rate ? `${short(e.rate)} tok/s` : '–', 'of prefill, learned')),
      ...events(e));
  });
}

function events(e) {
  if (e.events === 'Synced' && !e.doubted && !e.failures) return [];
  const chips = [];
  if (e.events !== 'Synced') chips.push(h('span', { class: `pill ${e.events === 'Degraded' || e.events === 'Disconnected' ? 'bad' : 'wait'}` }, `events: ${e.events.toLowerCase()}`));
  if (e.doubted) chips.push(h('span', { class: 'pill wait' }, 'counts half'));
  if (e.failures) chips.push(h('span', { class: 'pill' }, count(e.failures, 'failure')));
  return [h('p', { class: 'chips' }, chips)];
}

export function shadows(pool) {
  const list = pool.shadows ?? [];
  $('shadows-box').hidden = list.length === 0;
  $('shadows').replaceChildren(...list.map((s) => h('tr', {}, h('td', {}, s.name), h('td', {}, s.strategy), h('td', { class: 'n' }, whole(s.compared)),
    h('td', { class: 'n' }, percent(s.agreed, s.compared)), h('td', { class: 'n' }, seconds(s.savedSeconds)), h('td', { class: 'n' }, seconds(s.lostSeconds)))));
}

const bytes = (n) => (n < 1 << 20 ? `${(n / 1024).toFixed(n < 10240 ? 1 : 0)} KiB` : `${(n / (1 << 20)).toFixed(1)} MiB`);
const reasons = (by) => Object.entries(by ?? {}).sort((a, b) => b[1] - a[1]).map(([why, n]) => `${why.replaceAll('_', ' ')} ${whole(n)}`).join(', ') || 'none';

// responses shows what the pool's response cache has done and holds; a pool without one shows nothing.
export function responses(pool) {
  const r = pool.responseCache;
  $('responses-box').hidden = !r;
  if (!r) return;
  const line = (name, text) => h('tr', {}, h('td', {}, name), h('td', {}, text));
  $('responses').replaceChildren(
    line('Hits', `${whole(r.hits)} of ${whole(r.hits + r.misses)} requests that were looked up (${percent(r.hits, r.hits + r.misses)})`),
    line('Not looked up', reasons(r.notLookedUp)), line('Answers stored', whole(r.stored)), line('Answers not stored', reasons(r.notStored)),
    ...(r.semantic ? [line('Similar questions', `${whole(r.semantic.hits)} hits of ${whole(r.semantic.embedded)} compared, ${count(r.semantic.vectors, 'vector')}`), line('Not compared', reasons(r.semantic.notEmbedded))] : []),
    ...(r.semantic?.trouble ? [line('Trouble', r.semantic.troubleDetail)] : []),
    ...(r.store ? [line('Shared answers', reasons(r.store.results))] : []),
    ...(r.store?.trouble ? [line('Trouble of the store', r.store.troubleDetail)] : []),
    line('Holds', `${count(r.entries, 'answer')}, ${bytes(r.bytes)} of ${bytes(r.limit)}`), line('Removed', `${whole(r.evicted)} for room, ${whole(r.expired)} by age`));
}

// hooks shows how many requests each step of the policy had which outcome for.
export function hooks(pool) {
  const list = pool.hooks ?? [];
  $('hooks-box').hidden = list.length === 0;
  $('hooks').replaceChildren(...list.map((s) => h('tr', {}, h('td', {}, s.name),
    ['applied', 'refused', 'skipped', 'failed_open', 'failed_closed'].map((o) => h('td', { class: 'n' }, whole(s.outcomes[o] ?? 0))))));
}

// routes shows the routes that name the pool, where their rules send requests, and how many each pool has got by them.
export function routes(all, pool) {
  const own = `${pool.namespace}/${pool.name}`;
  const named = (x) => [...x.backends, ...(x.fallbacks ?? [])];
  const list = (all ?? []).filter((r) => r.rules.some((x) => named(x).some((b) => b.pool === own)));
  const row = (r, x, i, b, share) => h('tr', {}, h('td', {}, r.name), h('td', {}, r.models.join(', ')), h('td', { class: 'n' }, `${i + 1}`), h('td', {}, (x.when ?? ['all']).join(', or ')),
    h('td', {}, b.pool.slice(r.namespace.length + 1)), h('td', { class: 'n' }, share), h('td', { class: 'n' }, whole(r.requests[b.pool] ?? 0)));
  $('routes-box').hidden = list.length === 0;
  $('routes').replaceChildren(...list.flatMap((r) => r.rules.flatMap((x, i) => [
    ...x.backends.map((b) => row(r, x, i, b, percent(b.weight, sum(x.backends, (y) => y.weight), 0))),
    ...(x.fallbacks ?? []).map((b, n) => row(r, x, i, b, `fallback ${n + 1}`))])));
}

// verdict is what would become of a request that is explained.
export function verdict(x) {
  const c = x.candidates[0];
  const cached = x.responseCache;
  if (cached?.result === 'hit') return ['The ', h('strong', {}, 'response cache'), ` would answer it, with an answer of ${count(cached.ageSeconds ?? 0, 'second')} ago.`, c ? ` Without it, it would go to ${c.pod}.` : ''];
  const goes = ['It would go to ', h('strong', {}, c.pod), `, which holds ${c.matched} of its ${x.promptTokens} prompt tokens.`];
  return cached ? [...goes, ` The response cache ${unanswered[cached.result] ?? cached.result}${cached.similar ? '; similar questions were not looked for' : ''}.`] : goes;
}

// unanswered is why the response cache does not answer a request, by the word of the API.
const unanswered = {
  miss: 'has no answer to it with these headers', not_asked: 'is not used: the client must ask for it', not_deterministic: 'is not used: the request can have several answers',
  stateful: 'is not used: the request depends on others, or steers the engine', declined: 'is not used: cache-control refuses it',
  no_tenant: 'is not used: the request has no tenant', unreadable: 'is not used: the body cannot be compared, or is too large',
};

const outcomes = { completed: 'good', failed: 'bad', rejected: 'bad', client_gone: 'wait', unreported: '' };
const name = (c, ranks) => (ranks ? `${c.pod}/${c.rank}` : c.pod);

// has reports whether one of the texts contains what was typed into a filter.
const has = (wanted, ...texts) => texts.some((t) => t?.toLowerCase().includes(wanted.trim().toLowerCase()));

// shows reports whether a decision passes the filter: by its endpoint, model or outcome.
export function shows(d, wanted) {
  const c = d.candidates[Math.min(d.attempt, d.candidates.length - 1)];
  return has(wanted, c.pod, d.model, d.outcome ? d.outcome.replace('_', ' ') : 'under way');
}

// meanings of the columns of candidates; docs/troubleshooting.md has them, too.
const meanings = {
  Matched: 'Prompt tokens that the endpoint should have in its cache', Confirmed: 'Matched tokens in blocks that the endpoint itself has announced',
  'In flight': 'Requests at the endpoint when this one was routed', Cost: 'What the strategy compares: the least is chosen',
  wait: 'Work before this request: prefills that are pending, and steps of the requests that decode', reload: 'Moving matching blocks from CPU or disk to the GPU',
  lack: 'Computing the blocks again that must be evicted for this request', own: 'Prefill of the tokens that are not matched',
  wasted: 'Time for which other requests wait because a prefill was not avoided', evicted: 'Time to compute again what this request evicts from the cache',
  crowd: 'Factor: 1 plus a fifth for each request in flight there', delay: 'Network distance to another island, and loading a LoRA adapter',
  match: 'Blocks or chunks of the prompt that match', routed: 'Chunks of the prompt that were routed there before', pending: 'Tokens still to prefill there',
  uncached: 'Tokens of this prompt that are not cached there', 'in-flight': 'Requests at the endpoint', queue: 'Requests in the engine\'s own queue',
  home: '1 for the endpoint of the session\'s last request',
};

// decision is one line of the list, which opens to show the candidates.
export function decision(d) {
  const details = h('details', {}, h('summary'), h('div', { class: 'detail' }));
  const li = h('li', {}, details);
  details.addEventListener('toggle', () => { if (details.open) details.lastElementChild.replaceChildren(...candidates(li.decision)); });
  return li;
}

export function updateDecision(li, d) {
  li.decision = d;
  const c = d.candidates[Math.min(d.attempt, d.candidates.length - 1)];
  const details = li.firstElementChild;
  const found = d.cached >= 0 ? d.cached : c.matched;
  details.firstElementChild.replaceChildren(
    h('span', { class: 'time quiet' }, new Date(d.time).toLocaleTimeString([], { hour12: false })),
    h('strong', { class: 'where' }, name(c, d.candidates.some((x) => x.rank > 0))),
    h('span', { class: 'size' }, count(d.promptTokens, 'token')),
    h('span', { class: 'match' }, h('span', { class: 'bar', 'aria-hidden': 'true' }, width(h('i', { class: 'unique' }), d.promptTokens ? found / d.promptTokens : 0)),
      h('span', {}, `${percent(found, d.promptTokens, 0)} ${d.cached >= 0 ? 'found' : 'expected'}`)),
    h('span', { class: 'cost' }, value(c.cost, d.unit)),
    h('span', { class: 'end' }, h('span', { class: `pill ${outcomes[d.outcome] ?? ''}` }, d.outcome ? d.outcome.replace('_', ' ') : 'under way')));
  if (details.open) details.lastElementChild.replaceChildren(...candidates(d));
}

// candidates shows how the strategy saw each endpoint.
export function candidates(d) {
  const ranks = d.candidates.some((c) => c.rank > 0);
  const terms = d.candidates[0].terms.map((t) => t.name);
  const facts = [`${d.strategy}`, `model ${d.model}`, `tokens ${d.tokens}${d.tokensMissing ? ` (${d.tokensMissing})` : ''}`];
  if (d.route) facts.push(`route ${d.route}`);
  if (d.hooks) facts.push(`hooks ${d.hooks}`);
  if (d.prefix) facts.push(`prefix ${d.prefix}`);
  if (d.waitedMilliseconds) facts.push(`waited ${seconds(d.waitedMilliseconds / 1000)}`);
  if (d.firstTokenMilliseconds) facts.push(`first token after ${seconds(d.firstTokenMilliseconds / 1000)}`);
  if (d.durationMilliseconds) facts.push(`ended after ${seconds(d.durationMilliseconds / 1000)}`);
  if (d.distrusted) facts.push('some matches are not believed');
  if (d.noCacheRead) facts.push('reads no cache');
  if (d.miss) facts.push(`missed: ${d.miss}`);
  const fleet = (d.fleet ?? []).map((t) => `${t.name} ${value(t.value, t.unit)}`);
  const left = new Map();
  for (const l of d.leftOut ?? []) left.set(l.reason, [...(left.get(l.reason) ?? []), name(l, ranks)]);
  const head = ['Candidate', 'Matched', 'Confirmed', 'In flight', 'Cost', ...terms];
  return [
    h('p', { class: 'caption' }, facts.join(' · ')),
    fleet.length ? h('p', { class: 'caption' }, `All candidates: ${fleet.join(' · ')}`) : null,
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Candidates' }, h('table', {},
      h('thead', {}, h('tr', {}, head.map((t, i) => h('th', { class: i ? 'n' : '', scope: 'col', title: meanings[t] }, t)))),
      h('tbody', {}, d.candidates.map((c, i) => h('tr', { class: i === (d.attempt ?? 0) ? 'chosen' : '' },
        h('td', {}, name(c, ranks)), h('td', { class: 'n' }, `${whole(c.matched)} (${percent(c.matched, d.promptTokens, 0)})`), h('td', { class: 'n' }, whole(c.confirmed)),
        h('td', { class: 'n' }, whole(c.inFlight)), h('td', { class: 'n' }, h('strong', {}, value(c.cost, d.unit))),
        c.terms.map((t) => h('td', { class: 'n' }, value(t.value, t.unit)))))))),
    ...plans(d),
    ...[...left].map(([reason, list]) => h('p', { class: 'caption' }, `Left out, ${reason}: ${list.join(', ')}`)),
  ].filter((e) => e != null);
}

// plans shows the ways to serve a request in a pool with roles, or whose engines load blocks of each other.
function plans(d) {
  if (!d.plans) return [];
  const parts = (s) => (s.parts ?? []).map((t) => `${t.name} ${value(t.value, t.unit)}`).join(', ');
  const step = (s) => `${s.does} at ${name(s, s.rank > 0)}${s.seconds ? `, ${seconds(s.seconds)}` : ''}${parts(s) ? ` (${parts(s)})` : ''}`;
  const plan = (title, p, chosen) => h('p', { class: 'caption' }, h(chosen ? 'strong' : 'span', {}, title), ` ${p.seconds ? `${seconds(p.seconds)}: ` : ''}${p.steps.map(step).join('; ')}`);
  return [
    plan('Alone', d.plans.alone, !d.plans.handedOver && d.plans.because !== 'pull'),
    d.plans.handoff ? plan('Hand-off', d.plans.handoff, d.plans.handedOver) : null,
    d.plans.pull ? plan('With blocks of another endpoint', d.plans.pull, d.plans.because === 'pull') : null,
    d.plans.handedOver || d.plans.because === 'pull' ? null : h('p', { class: 'caption' }, `Not handed over: ${alone[d.plans.because] ?? d.plans.because}`),
  ];
}

// alone is why a request is not handed over, by the word of the API.
const alone = {
  rule: 'the policy hands over nothing', gateway: 'a gateway sends the request, and can send only one', request: 'requests of this kind are never handed over',
  short: 'the endpoint lacks no more than a block', threshold: 'the endpoint lacks less than the policy\'s uncachedTokens',
  'model-length': 'prompt and answer are longer than the model takes', 'no-prefill': 'no other endpoint that prefills is ready, has room and hands over',
  'no-decode': 'no endpoint that decodes has room and takes over from the one that prefills', cheaper: 'it is cheaper alone',
  tried: 'the endpoints are tried again by another request after failures',
};

export function prefixes(list) {
  $('prefixes-empty').hidden = list.length > 0;
  const most = Math.max(1, ...list.map((p) => p.hits));
  sync($('hot'), list, (p) => `${p.namespace}/${p.pool}/${p.hash}`, () => h('li', { class: 'pod' }), (li, p) => {
    li.replaceChildren(
      h('header', {}, h('h3', { class: 'mono' }, p.hash), h('span', { class: 'quiet' }, count(p.tokens, 'token'))),
      h('div', { class: 'bar', 'aria-hidden': 'true' }, width(h('i', { class: 'unique' }), p.hits / most)),
      h('p', { class: 'caption' }, `${p.hits.toFixed(1)} recent hits · ${p.holders.length} ${p.holders.length === 1 ? 'holder' : 'holders'}`),
      h('p', { class: 'chips' }, p.holders.slice(0, 12).map((x) => h('span', { class: `pill ${x.tokens >= p.tokens ? 'good' : ''}`, title: Object.entries(x.tiers).map(([t, n]) => `${t}: ${count(n, 'token')}`).join(', ') },
        x.tokens >= p.tokens ? x.pod : `${x.pod} ${percent(x.tokens, p.tokens, 0)}`)), p.holders.length > 12 ? h('span', { class: 'pill' }, `+${p.holders.length - 12}`) : null));
  });
}
