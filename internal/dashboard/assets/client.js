// Asks the picker. The token, where one is needed, lies in this module and nowhere else.

let token = '';
export const setToken = (t) => { token = t.trim(); };

// Refused is an answer that is none.
export class Refused extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

export async function ask(path, options = {}) {
  const headers = { Accept: 'application/json', ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { cache: 'no-store', credentials: 'omit', ...options, headers });
  if (!answer.ok) {
    const text = await answer.text();
    let message = text.trim();
    try { message = JSON.parse(text).message ?? message; } catch { /* it is plain text */ }
    throw new Refused(answer.status, message || answer.statusText);
  }
  return answer;
}

export const json = async (path, options) => (await ask(path, options)).json();

// lines calls f for every object of a stream of JSON lines, until it ends or the signal tells.
export async function lines(path, signal, f) {
  const answer = await ask(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split('\n');
    rest = parts.pop();
    for (const line of parts) if (line) f(JSON.parse(line));
  }
}
