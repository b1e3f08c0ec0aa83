// Rules and notifications: which rules are shown, the card that the address names, switching a rule, and keeping fresh.
import { $, $$, setAddress } from './core.js';
import { freshChannels, isOnItsWay, wireChannels } from './channels.js';
import { startLive } from './live.js';
import { failure } from './notice.js';
import { holding, put, readRule, told } from './rule_setting.js';
import { say } from './say.js';
import { startShell } from './shell.js';
import { wireSilences } from './silences.js';
import { paced, readPage, swapParts } from './swap.js';

const PAGE_EVERY_MS = 6000;
const FILTERS = ['all', 'changed', 'noisy', 'off'];
const data = JSON.parse($('#page-data').textContent);
const query = new URLSearchParams(location.search);
let mark = FILTERS.includes(query.get('show')) ? query.get('show') : 'all';
let family = query.get('family') ?? '';
let words = query.get('q') ?? '';

// ---- which rules
const cards = () => $$('.rule');

function filter() {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const group of $$('.group')) {
    const inFamily = !family || group.dataset.family === family;
    let any = false;
    for (const card of $$('.rule', group)) {
      const about = $('.rt', card).dataset;
      const matches = inFamily && about.marks.split(' ').includes(mark) && wanted.every((word) => about.words.includes(word));
      card.hidden = !matches && !card.matches('.edit');
      any ||= !card.hidden;
      shown += !card.hidden;
    }
    group.hidden = !any;
  }
  for (const button of $$('[data-filter]')) button.setAttribute('aria-pressed', String(button.dataset.filter === mark));
  $('#none').hidden = shown > 0;
  const total = cards().length;
  $('#shown').textContent = shown === total ? '' : say('{n} of {total}', { n: shown, total });
}

function change(values) {
  ({ mark = mark, family = family, words = words } = values);
  $('#family').value = family;
  if ($('#q').value !== words) $('#q').value = words;
  setAddress({ show: mark === 'all' ? null : mark, family, q: words });
  filter();
}

// ---- the card in the address
function hash() {
  const text = location.hash.slice(1);
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a percent sign that escapes nothing
  }
}

function go() {
  const name = hash();
  for (const card of $$('.rule.here')) card.classList.remove('here');
  const place = name && document.getElementById(name);
  const unknown = $('#unknown');
  unknown.hidden = !name || Boolean(place);
  if (!name) return;
  if (!place) {
    unknown.textContent = say('There is no rule {code}. All rules there are follow.', { code: name.slice(0, 60) });
    return;
  }
  if (place.matches('.rule')) {
    if (place.hidden) change({ mark: 'all', family: '', words: '' });
    place.classList.add('here');
    $('details', place).open = true;
  }
  if (place.matches('.rule, .card')) {
    place.scrollIntoView();
    place.focus({ preventScroll: true });
  }
}

// ---- switching a rule on and off
async function turn(box) {
  const code = box.dataset.switch;
  const enabled = box.checked;
  box.disabled = true;
  try {
    const rule = await readRule(code);
    const saved = await put(code, data.project, { ...holding(rule, data.project), enabled });
    told(enabled ? say('{code} is on.', { code }) : say('{code} is off: it finds nothing.', { code }), saved, refresh);
  } catch (error) {
    box.checked = !enabled;
    failure(error);
  } finally {
    box.disabled = false;
  }
  refresh();
}

// ---- editing: its scripts are read when somebody edits
async function edit(card) {
  if (!card || $(`#${card.id}-edit`).disabled) return;
  try {
    const { editRule } = await import('./rule_editor.js');
    await editRule(card, data, refresh);
  } catch (error) {
    failure(error);
  }
}

// ---- fresh
let again = 0;

async function refresh() {
  let page;
  try {
    page = await readPage();
  } catch {
    return; // the chip says that the server does not answer; the next event tries again
  }
  if (!page) return;
  for (const box of $$('.rule .sw')) {
    const fresh = $(`#${box.id}`, page); // what somebody switched by hand is no longer what its HTML says
    if (fresh && !box.disabled) box.checked = fresh.checked;
  }
  freshChannels(page);
  swapParts(page);
  filter();
  clearTimeout(again);
  if (isOnItsWay()) again = setTimeout(refresh, PAGE_EVERY_MS);
}

document.addEventListener('click', (event) => {
  const found = (selector) => event.target.closest?.(selector);
  const button = found('[data-filter]');
  if (button) change({ mark: button.dataset.filter });
  else if (found('#clear')) change({ mark: 'all', family: '', words: '' });
  else if (found('[data-edit]')) edit(found('.rule'));
});
document.addEventListener('change', (event) => {
  if (event.target.matches('[data-switch]')) turn(event.target);
});
$('#family').addEventListener('change', (event) => change({ family: event.target.value }));
$('#q').addEventListener('input', (event) => change({ words: event.target.value }));
$('#project').addEventListener('change', (event) => {
  const next = new URLSearchParams(location.search);
  if (event.target.value) next.set('project', event.target.value);
  else next.delete('project');
  location.assign(`/rules?${next}${location.hash}`);
});
addEventListener('hashchange', go);

function step(by) {
  const shown = cards().filter((card) => !card.hidden);
  const at = shown.findIndex((card) => card.contains(document.activeElement));
  const next = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
  next?.focus();
}

if (![...$('#family').options].some((option) => option.value === family)) family = '';
change({});
wireChannels(data, refresh);
wireSilences(data, refresh);
startShell({
  keys: {
    j: { run: () => step(1), text: say('Next rule') },
    k: { run: () => step(-1), text: say('Previous rule') },
    e: { run: () => edit(document.activeElement?.closest('.rule')), text: say('Edit the rule') },
  },
});
go();
const ask = paced(refresh, PAGE_EVERY_MS);
startLive({
  url: '/api/v1/events',
  ageS: null,
  notLive: () => '',
  onEvent: (kind) => ['alert', 'verdict'].includes(kind) && ask(), // a verdict may bring an alert
  onResume: () => ask({ soon: true }),
});
