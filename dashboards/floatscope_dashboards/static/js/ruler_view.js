// The range ruler follows the scrubber: the server draws it for a step, at most ten times a second.
import { $ } from './core.js';
import { chartTools } from './chart_tools.js';
import { say } from './say.js';

const LEAST_MS = 100;

/** @param {() => object} current the page's data */
export function rulerView(current) {
  const place = $('#ruler-place');
  const all = $('#all-tensors');
  let shown = null;
  let wanted = null;
  let asking = null;
  let timer = 0;
  let last = 0;

  const tools = chartTools({
    host: $('#ruler-tools'),
    chart: place,
    title: () => say('Where values sit in the format'),
    run: () => current().run,
    range: () => $('.ruler-sub', place)?.textContent ?? '',
    table: () => ({
      columns: [say('Tensor'), say('Format'), say('What it says'), say('In words')],
      rows: [...place.querySelectorAll('.rrows .rrow')].map((row) => [
        $('.nm', row).title.split('; ')[0],
        row.closest('section').getAttribute('aria-label'),
        $('.v', row).textContent,
        $('.nm', row).title,
      ]),
    }),
  });

  /** Asks for the ruler at a step, with a tensor that is to be shown whatever it is like. */
  function show(at, tensor) {
    if (at == null) return;
    const key = `${at} ${tensor ?? ''}`;
    if (key === wanted) return;
    wanted = key;
    const drawn = place.querySelector('#ruler')?.dataset;
    if (shown === null && !tensor && [drawn?.step, drawn?.asked].includes(String(at))) {
      shown = key; // the server drew it into the page
      return;
    }
    clearTimeout(timer);
    timer = setTimeout(() => fetchRuler(at, tensor, key), Math.max(0, last + LEAST_MS - performance.now()));
  }

  async function fetchRuler(at, tensor, key) {
    last = performance.now();
    asking?.abort();
    asking = new AbortController();
    const address = new URL(`/runs/${encodeURIComponent(current().run)}/ruler`, location.origin);
    address.searchParams.set('at', at);
    for (const name of new Set([tensor, current().origin])) if (name) address.searchParams.append('t', name);
    const lang = new URLSearchParams(location.search).get('lang');
    if (lang) address.searchParams.set('lang', lang);
    try {
      const answer = await fetch(address, { signal: asking.signal, headers: { Accept: 'text/html' } });
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('#ruler');
      if (!fresh || key !== wanted) return;
      put(fresh, at);
      shown = key;
    } catch (error) {
      if (error.name === 'AbortError') return;
      wanted = shown; // the next move asks again
      place.querySelector('#ruler')?.classList.add('old');
    }
  }

  function put(fresh, at) {
    const old = place.querySelector('#ruler');
    const focused = [...old.querySelectorAll('a')].indexOf(document.activeElement);
    old.replaceWith(fresh);
    if (focused >= 0) fresh.querySelectorAll('a')[focused]?.focus({ preventScroll: true });
    all.search = `?at=${at}`;
    tools.refresh();
  }

  return { show };
}
