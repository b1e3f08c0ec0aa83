// The list of incidents: read again when something happened, without moving a row under the reader. What is new waits in
// a line above the list until the reader wants to see it.
import { $, $$, element } from './core.js';
import { plural, say } from './say.js';
import { readPage, swap } from './swap.js';
import { localTimes } from './times.js';

const TITLE_CHARS = 80;

let last = Promise.resolve(true); // reads follow each other, so that an older answer never takes the place of a newer one
let waiting = null; // the fresh list that is not shown yet
let since = Date.parse($('#alerts')?.dataset.now ?? '') || Date.now(); // what began later is new
let listeners = [];

/** `listener` is called whenever rows or the detail were put in place. */
export const onShown = (listener) => listeners.push(listener);
const shown = () => {
  for (const listener of listeners) listener();
};

export const rows = (root = $('#list')) => (root ? $$('li[data-key]', root) : []);
export const rowOf = (key) => rows().find((row) => row.dataset.key === key);
const order = (root) => rows(root).map((row) => `${row.closest('[data-section]').dataset.section} ${row.dataset.key}`);
const inList = () => $('#list').matches(':hover, :focus-within');
const short = (text) => (text.length > TITLE_CHARS ? `${text.slice(0, TITLE_CHARS)}...` : text);

/**
 * Reads the page at the present address and puts it in place. @param {{force?: boolean}} [options] force: also where rows
 *   move, since the reader asked for it
 * @returns {Promise<boolean>} whether it was read
 */
export function refresh(options = {}) {
  last = last.catch(() => false).then(() => read(options)); // one that failed does not end those after it
  return last;
}

async function read({ force = false }) {
  const address = location.href;
  let page;
  try {
    page = await readPage();
  } catch {
    return false; // the chip says that the server does not answer; the next event tries again
  }
  if (!page || location.href !== address) return false;
  document.title = page.title;
  if (!$('#split', page) || !$('#split')) {
    if (!swap($('#alerts'), $('#alerts', page)) && force) location.reload();
    return true;
  }
  for (const part of $$('[data-part]')) {
    const fresh = $(`[data-part="${part.dataset.part}"]`, page);
    if (fresh) swap(part, fresh);
  }
  putDetail($('#detail-body', page));
  const fresh = $('#list', page);
  localTimes(fresh);
  if (force) put(fresh);
  else settle(fresh);
  since = Math.max(since, force ? Date.parse($('#alerts', page).dataset.now) : 0);
  shown();
  return true;
}

/** The detail as it is now; what the reader has typed into the note stays. */
function putDetail(fresh) {
  const place = $('#detail-body'); // notices stand beside it, in the same dialog
  const scrolled = $('#detail');
  const typed = $('#note', place)?.value ?? '';
  const same = $('.dh', place)?.dataset.alert === $('.dh', fresh)?.dataset.alert;
  const top = scrolled.scrollTop;
  if (!swap(place, fresh) && !same) place.replaceChildren(...fresh.childNodes);
  scrolled.scrollTop = same ? top : 0;
  if (same && typed && $('#note', place)) $('#note', place).value = typed;
}

/** Shows a list as the server has it, keeping the focus and the place on the screen. */
function put(fresh) {
  const focused = $('#list').contains(document.activeElement) ? document.activeElement.id : '';
  $('#list').replaceChildren(...fresh.childNodes);
  waiting = null;
  $('#news').replaceChildren();
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** Brings rows up to date where they stand; what would move them waits. */
function settle(fresh) {
  const before = order($('#list'));
  const next = order(fresh);
  const moved = next.filter((key, index) => key !== before[index]).length + Math.max(0, before.length - next.length);
  const arrived = rows(fresh).filter((row) => Date.parse($('.age time', row).dateTime) > since && !rowOf(row.dataset.key));
  const places = $$('[data-section]', fresh).length === $$('#list [data-section]').length;
  if (moved && !arrived.length && !inList() && !waiting) {
    put(fresh);
    return;
  }
  for (const row of rows()) {
    const other = rows(fresh).find((one) => one.dataset.key === row.dataset.key);
    if (other) renew(row, other.cloneNode(true));
  }
  if (places && !moved) {
    for (const head of $$('#list .grp')) swap(head, $(`#${head.id}`, fresh));
    if (waiting) put(fresh);
    return;
  }
  waiting = fresh;
  tell(arrived, moved);
}

function renew(row, other) {
  const picked = $('.pick', row)?.checked;
  for (const { name, value } of other.attributes) row.setAttribute(name, value);
  swap(row, other);
  const box = $('.pick', row);
  if (box) box.checked = Boolean(picked);
}

/** The line above the list. */
function tell(arrived, moved) {
  const [first] = arrived;
  let text = plural('{n} incident changed its place in the list.', '{n} incidents changed their place in the list.', moved);
  if (first) {
    const values = { title: short($('.t', first).textContent), run: short(first.dataset.runName) };
    text = plural('{n} new incident since you opened this page: {title}, {run}', '{n} new incidents since you opened this page, the worst: {title}, {run}', arrived.length, values);
  }
  const button = element('button', { className: 'btn sm', text: first ? say('Show it') : say('Update the list') });
  button.type = 'button';
  const key = first?.dataset.key;
  button.addEventListener('click', () => showWaiting(key));
  const line = $('#news');
  if ($('span', line)?.textContent === text) $('button', line).replaceWith(button);
  else line.replaceChildren(element('span', { text }), button);
}

function showWaiting(key) {
  if (!waiting) return;
  put(waiting);
  since = Date.now();
  shown();
  const link = key && $('.t', rowOf(key));
  link?.scrollIntoView({ block: 'center' });
  (link || $('#list .t'))?.focus({ preventScroll: true });
}

/** Another address, as a step in the browser's history. */
export async function go(href, { replace = false } = {}) {
  history[replace ? 'replaceState' : 'pushState'](null, '', href);
  return refresh({ force: true });
}

/** All alerts of the incident of a row, or of the detail, with their states; those of a large one are asked for.
 * @param {HTMLElement} item @returns {Promise<string>} as data-ids */
export async function idsOf(item) {
  const { ids, key, alert, lead } = item.dataset;
  if (ids) return ids;
  const answer = await fetch(`/alerts/${encodeURIComponent(alert ?? lead)}?unfold=${encodeURIComponent(key)}`, { headers: { Accept: 'text/html' }, cache: 'no-store' });
  if (!answer.ok) throw new Error(say('the server answered {status}', { status: answer.status }));
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  return $('#detail .dh', page)?.dataset.ids ?? '';
}
