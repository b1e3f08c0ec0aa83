// The alerts page: keys, links that open the detail without leaving the page, and what comes in live.
import { act, isActing, those } from './alerts_actions.js';
import { anyPicked, drawPicks, pickNone, silenceRows, toggle, wireBulk } from './alerts_bulk.js';
import { close, isOpen, open, openNext, present, wireDetail } from './alerts_detail.js';
import { wireFilters } from './alerts_filters.js';
import { go, idsOf, onShown, refresh, rowOf, rows } from './alerts_list.js';
import { $, $$ } from './core.js';
import { startLive } from './live.js';
import { failure } from './notice.js';
import { say } from './say.js';
import { startShell } from './shell.js';
import { paced } from './swap.js';

const READ_EVERY_MS = 3000;

const focusedRow = () => document.activeElement?.closest?.('#list li[data-key]');

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(focusedRow() ?? $('.incr.cur')?.closest('li'));
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  $('.t', next).focus();
}

/** Acknowledges the incident of the row that has the focus, else the one that is open. The focus goes on to the next. */
async function acknowledge() {
  const row = focusedRow();
  const item = row ?? $('#detail .dh');
  if (!item || !$('#tools')) return; // #tools: whether the reader may
  const all = rows();
  const next = row && all[all.indexOf(row) + 1]?.dataset.key;
  try {
    await act(those(await idsOf(item), 'acknowledge'), { action: 'acknowledge' }, { after: () => refresh({ force: true }) });
  } catch (error) {
    failure(error);
  }
  const target = next && rowOf(next);
  if (target) $('.t', target).focus({ preventScroll: true });
}

function escape() {
  if (isOpen()) close();
  else if (anyPicked()) pickNone();
  else document.activeElement?.blur();
}

const plainClick = (event) => !(event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);

function wireLinks() {
  document.addEventListener('click', async (event) => {
    const link = event.target.closest?.('#alerts a[href]');
    if (event.target.closest?.('#silence-any')) {
      await silenceRows($$('#detail .dh')).catch(failure);
      return;
    }
    if (!link || !plainClick(event) || !/^\/alerts(\/|\?|$)/.test(link.pathname + link.search)) return;
    event.preventDefault();
    if (link.id === 'close-detail') await close();
    else if (link.pathname !== '/alerts' && (link.matches('.t') || link.closest('.sub14, .dh'))) await open(link.href);
    else if (link.matches('.show-more')) await showMore(link);
    else await go(link.href);
  });
  addEventListener('popstate', () => refresh({ force: true }));
}

/** More incidents of a section; the focus goes to the first that was not there. */
async function showMore(link) {
  const section = link.closest('[data-section]');
  const last = $$('li[data-key]', section).at(-1)?.dataset.key;
  const place = link.href.split('#')[0];
  if (await go(place)) $('.t', rowOf(last)?.nextElementSibling ?? undefined)?.focus({ preventScroll: true });
}

wireLinks();
wireBulk();
wireFilters();
wireDetail();
onShown(() => {
  drawPicks();
  present();
});
startShell({
  keys: {
    j: { run: () => step(1), text: say('Next and previous incident') },
    k: { run: () => step(-1), text: say('Next and previous incident') },
    Enter: { run: () => {}, text: say('Open the incident') },
    n: { run: () => openNext(1), text: say('Detail of the next and the previous incident') },
    p: { run: () => openNext(-1), text: say('Detail of the next and the previous incident') },
    x: { run: () => focusedRow() && toggle(focusedRow()), text: say('Select the incident') },
    a: { run: acknowledge, text: say('Acknowledge the incident') },
    Escape: { run: escape, text: say('Close the detail') },
  },
});
const ask = paced(() => refresh(), READ_EVERY_MS);
startLive({
  url: '/api/v1/events',
  ageS: null,
  notLive: () => '',
  onEvent: (kind) => kind !== 'tick' && !isActing() && ask(),
  onResume: () => ask({ soon: true }),
});
