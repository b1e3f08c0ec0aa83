// The overview: filters, keys, and rows that stay fresh without jumping under the reader's pointer.
import { $, $$, announce, setAddress, wireCopy, wireKeys, wireTheme } from './core.js';
import { startLive } from './live.js';
import { paced, readPage, swap } from './swap.js';

const PAGE_EVERY_MS = 3000;

const query = new URLSearchParams(location.search);
let health = new Set((query.get('health') ?? '').split(',').filter(Boolean));
let words = query.get('q') ?? '';

const rows = () => $$('#rows tr');
const visible = () => rows().filter((row) => !row.hidden);

function matches(row) {
  const inGroup = !health.size || health.has(row.dataset.group) || (health.has('live') && row.dataset.live === '1');
  const text = `${$('.c-run', row).textContent} ${$('.c-why', row).textContent}`.toLowerCase();
  return inGroup && words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function filter() {
  if (!$('#rows')) return;
  for (const row of rows()) row.hidden = !matches(row);
  for (const button of $$('[data-filter]')) {
    const key = button.dataset.filter;
    button.setAttribute('aria-pressed', String(key === 'all' ? !health.size : health.has(key)));
  }
  const shown = visible().length;
  const total = rows().length;
  $('#none').hidden = shown > 0;
  $('#shown').textContent = shown === total ? `${total}, worst first` : `${shown} of ${total}, worst first`;
}

function change() {
  setAddress({ health: [...health].join(','), q: words });
  filter();
}

document.addEventListener('click', (event) => {
  const button = event.target.closest?.('[data-filter]');
  if (button) {
    const key = button.dataset.filter;
    if (key === 'all') health = new Set();
    else if (!health.delete(key)) health.add(key);
    change();
  } else if (event.target.closest?.('#clear')) {
    health = new Set();
    words = '';
    $('#q').value = '';
    change();
  }
});

// ---- fresh rows
let waiting = null;

/** Whether the reader is in the table: rows must not move then. */
const inTable = () => $('.runs')?.matches(':hover, :focus-within') ?? false;

function reorder() {
  if (!waiting) return;
  swap($('#rows'), waiting);
  waiting = null;
  $('#reorder').hidden = true;
  filter();
}

function updateRows(fresh) {
  const now = rows();
  const next = $$('tr', fresh);
  const before = now.map((row) => row.dataset.run);
  const order = next.map((row) => row.dataset.run);
  const moved = order.filter((run, index) => run !== before[index]).length;
  if (moved === 0 || !inTable()) {
    swap($('#rows'), fresh);
    waiting = null;
  } else {
    waiting = fresh.cloneNode(true);
    const byRun = new Map(next.map((row) => [row.dataset.run, row]));
    for (const row of now) {
      const other = byRun.get(row.dataset.run);
      if (!other) continue;
      Object.assign(row.dataset, other.dataset);
      if (!row.contains(document.activeElement)) swap(row, other);
    }
    $('#reorder').textContent = moved === 1 ? '1 row changed place' : `${moved} rows changed place`;
  }
  $('#reorder').hidden = !waiting;
}

async function refresh() {
  let page;
  try {
    page = await readPage();
  } catch {
    return; // the chip says that the server does not answer; the next event tries again
  }
  if (!page) return;
  if (document.title !== page.title) {
    document.title = page.title;
    announce($('h1', page)?.textContent ?? '');
  }
  const fresh = $('#rows', page);
  if (!fresh || !$('#rows')) {
    swap($('#overview'), $('#overview', page));
  } else {
    for (const part of $$('[data-part]')) {
      const other = $(`[data-part="${part.dataset.part}"]`, page);
      if (other) swap(part, other);
    }
    updateRows(fresh);
  }
  wireParts();
  filter();
}

function wireParts() {
  const field = $('#q');
  if (field && !field.dataset.wired) {
    field.dataset.wired = '1';
    field.value = words;
    field.addEventListener('input', () => {
      words = field.value;
      change();
    });
    $('#reorder').addEventListener('click', reorder);
  }
  const origin = $('#origin');
  if (origin) origin.textContent = location.origin;
}

// ---- keys
function step(by) {
  const links = visible().map((row) => $('a', row));
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

wireTheme();
wireCopy();
wireParts();
filter();
wireKeys({
  t: () => $('#theme').click(),
  j: () => step(1),
  k: () => step(-1),
  '/': (event) => {
    event.preventDefault();
    $('#q')?.focus();
  },
  Escape: () => document.activeElement?.blur(),
});
const ask = paced(refresh, PAGE_EVERY_MS);
startLive({
  url: '/api/v1/events',
  ageS: null,
  notLive: () => '',
  onEvent: (kind) => ask({ soon: kind !== 'tick' }),
  onResume: () => ask({ soon: true }),
});
