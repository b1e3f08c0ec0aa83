// The overview: filters without leaving the page, keys, and rows that stay fresh.
import { $, $$, announce, element, setAddress } from './core.js';
import { applyColumns, wireColumns } from './columns.js';
import { startLive } from './live.js';
import { compare, showPicks, toggle, wirePicks, withPicks } from './picks.js';
import { freshen } from './rows.js';
import { say } from './say.js';
import { startShell } from './shell.js';
import { paced, readPage, swap } from './swap.js';

const PAGE_EVERY_MS = 3000;
const TYPED_MS = 250;
const FOLLOW_MS = 500;
const MOST_FOLLOWS = 12;

let follows = 0;
let typed = 0;

/** Puts the page as the server shows it now in place. `live`: nobody asked for it, so rows must not jump. */
function place(page, { live }) {
  const fresh = $('#overview', page);
  if (!fresh) return;
  if (document.title !== page.title) {
    document.title = page.title;
    announce($('h1', page)?.textContent ?? '');
  }
  const waiting = $('#waiting');
  if (waiting && $('#runs .name', fresh)) {
    arrived(waiting, $('#runs .name', fresh)); // who reads how to begin goes on reading
    return;
  }
  if (!$('.tblwrap', fresh) || !$('.tblwrap')) {
    swap($('#overview'), fresh);
  } else {
    for (const part of $$('[data-part]', $('#overview'))) {
      const other = $(`[data-part="${part.dataset.part}"]`, fresh);
      const writing = part.dataset.part === 'find' && part.contains(document.activeElement);
      if (other && !writing) swap(part, other);
    }
    freshen($('.tblwrap', fresh), { live });
  }
  arrange();
  const follow = $('#runs')?.hasAttribute('data-follow') && follows < MOST_FOLLOWS;
  follows = follow ? follows + 1 : 0;
  if (follow) setTimeout(() => ask({ soon: true }), FOLLOW_MS); // curves that were not read in time
}

/** The line that waits for the first run leads to it. @param {Element} waiting @param {HTMLAnchorElement} first */
function arrived(waiting, first) {
  if ($('a', waiting)) return;
  const open = element('a', { className: 'btn pri', text: say('Open {run}', { run: first.textContent }) });
  open.href = first.getAttribute('href');
  const all = element('a', { className: 'btn', text: say('All runs') });
  all.href = '/';
  waiting.replaceChildren(element('i', { className: 'here' }), `${say('The first run is here.')} `, open, ' ', all);
}

function arrange() {
  applyColumns();
  showPicks();
  for (const place of $$('[data-origin]')) place.textContent = location.origin;
}

async function show({ live }) {
  const address = location.href;
  let page;
  try {
    page = await readPage();
  } catch {
    if (!live) location.reload(); // the browser says best why a page cannot be read
    return; // the chip says that the server does not answer; the next event tries again
  }
  if (page && location.href === address) place(page, { live });
}

const ask = paced(() => show({ live: true }), PAGE_EVERY_MS);

document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[data-view]');
  if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState(null, '', withPicks(link.href));
  show({ live: false });
});
addEventListener('popstate', () => show({ live: false }));

function search() {
  clearTimeout(typed);
  setAddress({ q: $('#q').value.trim(), page: null });
  show({ live: false });
}
document.addEventListener('input', (event) => {
  if (event.target.id !== 'q') return;
  clearTimeout(typed);
  typed = setTimeout(search, TYPED_MS);
});
document.addEventListener('submit', (event) => {
  if (!event.target.matches('.find')) return;
  event.preventDefault();
  search();
});

// ---- keys
const links = () => $$('#runs tr[data-run] .name');

function step(by) {
  const all = links();
  if (!all.length) return;
  const row = document.activeElement?.closest?.('tr[data-run]');
  const at = all.findIndex((link) => row?.contains(link));
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  next.focus();
  next.closest('tr').scrollIntoView({ block: 'nearest' });
}

wireColumns();
wirePicks();
arrange();
startShell({
  keys: {
    j: { run: () => step(1), text: say('Next and previous run') },
    k: { run: () => step(-1), text: say('Next and previous run') },
    x: { run: () => toggle(document.activeElement?.closest?.('tr[data-run]')), text: say('Select the run') },
    c: { run: compare, text: say('Compare the two selected runs') },
    f: {
      run: (event) => {
        event.preventDefault();
        $('#q')?.focus();
      },
      text: say('Filter runs'),
    },
    Escape: () => document.activeElement?.blur(),
  },
});
startLive({
  url: '/api/v1/events',
  ageS: null,
  notLive: () => '',
  onEvent: () => ask(),
  onResume: () => ask({ soon: true }),
});
if ($('#runs')?.hasAttribute('data-follow')) setTimeout(() => ask({ soon: true }), FOLLOW_MS);
