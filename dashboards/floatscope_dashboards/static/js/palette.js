// Search over runs, tensors, pages and actions: a combobox whose list is always open (ARIA APG). Loaded when it is asked
// for. The server looks for runs and tensors; pages and actions are found here. Answers that come late are dropped.
import { get } from './api.js';
import { $, $$, element, goTo } from './core.js';
import { openDialog } from './dialog.js';
import { commands } from './palette_commands.js';
import { plural, say } from './say.js';

const WAIT_MS = 130;
const RUN_ID = /^[A-Za-z0-9._-]{1,128}$/;
const MOST_CHARS = 200;
const SHOWN = 8;
const HEALTH = () => ({
  critical: ['crit', '\u25b2', say('Critical')],
  warning: ['warn', '\u25c6', say('Warning')],
  watch: ['info', '\u25cb', say('Watch')],
  warming_up: ['dots', '\u2026', say('Warming up')],
  healthy: ['ok', '\u2713', say('Healthy')],
});

/** @param {Record<string, () => void>} actions what the page can do: theme, help, link */
export function openPalette(actions) {
  if ($('.palette')) return;
  const known = commands(actions);
  const here = /^\/runs\/([^/]+)/.exec(location.pathname)?.[1] ?? new URLSearchParams(location.search).get('run');
  const run = RUN_ID.test(here ?? '') ? here : null; // the server refuses what is no run's id
  let found = { runs: [], tensors: [], more_runs: false, more_tensors: false };
  let entries = [];
  let active = 0;
  let asked = null;
  let timer = 0;
  let pending = false;
  let go = null; // Enter while the answer is on its way: which keys were down

  const field = element('input');
  const list = element('div', { className: 'pal-list' });
  const status = element('p', { className: 'pal-status' });
  const close = element('button', { className: 'btn sm', text: say('Close') });
  Object.assign(field, { type: 'text', maxLength: MOST_CHARS, autocomplete: 'off', spellcheck: false, placeholder: say('Search runs, tensors, actions') });
  for (const [name, value] of [['role', 'combobox'], ['aria-expanded', 'true'], ['aria-controls', 'pal-list'], ['aria-autocomplete', 'list'], ['aria-label', say('Search runs, tensors, actions')], ['autocapitalize', 'none']]) field.setAttribute(name, value);
  list.id = 'pal-list';
  list.setAttribute('role', 'listbox');
  list.setAttribute('aria-label', say('Found'));
  status.setAttribute('role', 'status');
  const dialog = openDialog([element('div', { className: 'pal-in' }, field, close), list, status], {
    label: say('Search'),
    className: 'palette',
    onClose: () => {
      clearTimeout(timer);
      asked?.abort();
    },
  });
  close.addEventListener('click', () => dialog.close());
  field.focus();

  const words = () => field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (text) => words().every((word) => text.toLowerCase().includes(word));

  function draw() {
    const groups = [
      [say('Runs'), found.runs.filter((item) => matches(runText(item))).slice(0, SHOWN).map(runEntry), found.more_runs],
      [say('Tensors'), words().length ? found.tensors.filter((item) => matches(item.name)).map((item) => tensorEntry(item, run)) : [], found.more_tensors],
      [say('Pages and actions'), known.filter((item) => matches(item.text)), false],
    ].filter(([, items]) => items.length);
    entries = groups.flatMap(([, items]) => items);
    active = Math.min(active, Math.max(0, entries.length - 1));
    let at = 0;
    list.replaceChildren(
      ...groups.map(([title, items, more]) => {
        const heading = element('div', { className: 'pal-h', text: title });
        heading.setAttribute('role', 'presentation');
        const group = element('div', {}, heading);
        group.setAttribute('role', 'group');
        group.setAttribute('aria-label', title);
        for (const item of items) group.append(optionOf(item, at++, words()));
        if (more && words().length) heading.append(element('span', { text: say('There are more: add a word') }));
        return group;
      }),
    );
    list.hidden = !entries.length;
    mark();
  }

  function mark() {
    for (const [at, option] of $$('[role=option]', list).entries()) {
      option.setAttribute('aria-selected', String(at === active));
      if (at === active) option.scrollIntoView({ block: 'nearest' });
    }
    if (entries.length) field.setAttribute('aria-activedescendant', `pal-${active}`);
    else field.removeAttribute('aria-activedescendant');
  }

  async function ask() {
    asked?.abort();
    const mine = (asked = new AbortController());
    try {
      const answer = await get('/api/v1/search', { q: field.value.trim(), run, limit: SHOWN }, { signal: mine.signal });
      if (mine.signal.aborted) return;
      found = answer;
      pending = false;
      draw();
      status.classList.toggle('is-said', !entries.length);
      status.textContent = entries.length ? plural('{n} found', '{n} found', entries.length) : say('Nothing matches. Try a part of a name, a project, or a word such as "rules".');
      if (go) enter(go);
    } catch (error) {
      if (mine.signal.aborted) return;
      pending = false;
      status.classList.add('is-said');
      status.textContent = say('Runs and tensors cannot be searched now: {problem}.', { problem: error.message });
      if (go) enter(go); // pages and actions need no server
    }
  }

  function enter(keys) {
    go = null;
    const item = entries[active];
    if (pending && (words().length || !item)) {
      go = keys;
      return;
    }
    if (!item) return;
    if (item.href && (keys.ctrlKey || keys.metaKey)) {
      window.open(item.href, '_blank', 'noopener');
      return;
    }
    dialog.close();
    if (item.href) goTo(item.href);
    else item.run();
  }

  field.addEventListener('input', () => {
    active = 0;
    go = null;
    pending = true;
    draw();
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT_MS);
  });
  field.addEventListener('keydown', (event) => {
    if (event.isComposing) return;
    const last = entries.length - 1;
    const to = { ArrowDown: active >= last ? 0 : active + 1, ArrowUp: active <= 0 ? last : active - 1, PageDown: Math.min(last, active + SHOWN), PageUp: Math.max(0, active - SHOWN) }[event.key];
    if (to !== undefined && entries.length) {
      event.preventDefault();
      active = to;
      mark();
    } else if (event.key === 'Enter') {
      event.preventDefault();
      enter({ ctrlKey: event.ctrlKey, metaKey: event.metaKey });
    }
  });
  list.addEventListener('pointermove', (event) => {
    const option = event.target.closest('[role=option]');
    if (!option || Number(option.dataset.at) === active) return;
    active = Number(option.dataset.at);
    mark();
  });
  list.addEventListener('pointerdown', (event) => event.preventDefault()); // the focus stays in the field
  list.addEventListener('click', (event) => {
    const option = event.target.closest('[role=option]');
    if (!option) return;
    active = Number(option.dataset.at);
    pending = false;
    enter(event);
  });
  draw();
  ask();
}

const runText = (item) => `${item.name} ${item.run_id} ${item.project} ${item.cause ?? ''} ${(item.cause ?? '').replaceAll('_', ' ')}`;

function runEntry(item) {
  const [kind, glyph, word] = HEALTH()[item.warming_up ? 'warming_up' : item.health] ?? ['idle', '?', item.health];
  const why = item.cause && item.health !== 'healthy' ? item.cause.replaceAll('_', ' ') : item.name === item.run_id ? '' : item.run_id;
  return { text: item.name, more: why ? `${item.project}, ${why}` : item.project, chip: [kind, `${glyph} ${word}`], href: `/runs/${encodeURIComponent(item.run_id)}` };
}

function tensorEntry(item, run) {
  return { text: item.name, mono: true, more: item.run_id === run ? '' : item.run_name, href: `/runs/${encodeURIComponent(item.run_id)}/tensors/${encodeURIComponent(item.name)}` };
}

function optionOf(item, at, words) {
  const text = element('span', { className: item.mono ? 'pal-t mono' : 'pal-t' }, ...marked(item.text, words));
  const option = element('div', { className: 'pal-o' }, text);
  option.id = `pal-${at}`;
  option.dataset.at = String(at);
  option.setAttribute('role', 'option');
  if (item.more) option.append(element('span', { className: 'pal-m' }, ...marked(item.more, item.mono ? [] : words)));
  if (item.chip) option.append(element('span', { className: `chip ${item.chip[0]}`, text: item.chip[1] }));
  if (item.keys) option.append(element('span', { className: 'pal-k' }, ...item.keys.split(' ').map((key) => element('kbd', { text: key }))));
  return option;
}

/** The text with what matched in marks; matches that overlap count as one. */
function marked(text, words) {
  const low = text.toLowerCase();
  if (low.length !== text.length || !words.length) return [text]; // a few letters change their length in lower case
  const hit = new Uint8Array(text.length);
  for (const word of words) for (let at = low.indexOf(word); at >= 0; at = low.indexOf(word, at + 1)) hit.fill(1, at, at + word.length);
  const parts = [];
  for (let at = 0, end; at < text.length; at = end) {
    for (end = at + 1; end < text.length && hit[end] === hit[at]; ) end += 1;
    const part = text.slice(at, end);
    parts.push(hit[at] ? element('mark', { text: part }) : part);
  }
  return parts;
}
