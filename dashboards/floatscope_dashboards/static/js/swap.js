// Keeps the server's own HTML fresh: reads the page again and puts changed parts in place. The parts are the elements
// with data-part; what the reader has open, focused or selected there stays so.
import { $, $$ } from './core.js';

/** @returns {Promise<Document|null>} the page as the server would send it now; null when it could not be read */
export async function readPage() {
  const answer = await fetch(location.href, { headers: { Accept: 'text/html' }, cache: 'no-store' });
  if (answer.status === 401 || new URL(answer.url).pathname === '/login') return refused('signed-out');
  if (answer.status === 404) return refused('gone');
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return new DOMParser().parseFromString(await answer.text(), 'text/html');
}

function refused(why) {
  if ($('#refused')) return null;
  const strip = document.createElement('p');
  strip.id = 'refused';
  strip.className = 'strip';
  strip.setAttribute('role', 'alert');
  const link = document.createElement('a');
  if (why === 'gone') {
    strip.append('This run no longer exists on the server. ');
    link.href = '/';
    link.textContent = 'All runs';
  } else {
    strip.append('Your session has ended, so this page no longer updates. ');
    link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = 'Sign in again';
  }
  strip.append(link);
  $('main').prepend(strip);
  return null;
}

function busy(part) {
  const selection = getSelection();
  return part.matches(':active') || (selection && !selection.isCollapsed && selection.containsNode(part, true));
}

/** Puts one element's content in place of another's, keeping open details and the focus. @returns {boolean} changed */
export function swap(part, fresh) {
  if (busy(part)) return false;
  const open = $$('details[open][data-key]', part).map((item) => item.dataset.key);
  if (part.innerHTML === fresh.innerHTML) return false;
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const mark = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.dataset.filter ? `[data-filter="${focused.dataset.filter}"]` : null);
  part.replaceChildren(...fresh.childNodes);
  for (const item of $$('details[data-key]', part)) if (open.includes(item.dataset.key)) item.open = true;
  if (mark) $(mark, part)?.focus({ preventScroll: true });
  return true;
}

/** Swaps every part and the title. @param {Document} page @param {string[]} [except] */
export function swapParts(page, except = []) {
  if (document.title !== page.title) document.title = page.title;
  for (const part of $$('[data-part]')) {
    const name = part.dataset.part;
    const fresh = !except.includes(name) && $(`[data-part="${name}"]`, page);
    if (fresh) swap(part, fresh);
  }
}

/** Calls `work` at most every `leastMs`, and less often when it takes long: it never takes over a quarter of the time. */
export function paced(work, leastMs) {
  let running = false;
  let wanted = false;
  let next = 0;
  let timer = 0;
  async function go() {
    timer = 0;
    running = true;
    wanted = false;
    const start = performance.now();
    try {
      await work();
    } finally {
      const took = performance.now() - start;
      next = performance.now() + Math.max(leastMs, 3 * took);
      running = false;
      if (wanted) ask();
    }
  }
  function ask({ soon = false } = {}) {
    wanted = true;
    if (running) return;
    const wait = soon ? 0 : Math.max(0, next - performance.now());
    if (timer && !soon) return;
    clearTimeout(timer);
    timer = setTimeout(go, wait);
  }
  return ask;
}
