// Keeps the server's own HTML fresh: reads the page again and puts changed parts in place. The parts are the elements
// with data-part; what the reader has open, focused or selected there stays so.
import { $, $$ } from './core.js';
import { say } from './say.js';
import { gone, signedIn, signedOut } from './strips.js';
import { localTimes } from './times.js';

/** @returns {Promise<Document|null>} the page as the server would send it now; null when it could not be read, which
 *   a strip on the page says. The number of open alerts in the top bar is brought up to date by the way. */
export async function readPage() {
  const answer = await fetch(location.href, { headers: { Accept: 'text/html' }, cache: 'no-store' });
  if (answer.status === 401 || new URL(answer.url).pathname === '/login') return signedOut() ?? null;
  if (answer.status === 404) return gone() ?? null;
  if (!answer.ok) throw new Error(say('the server answered {status}', { status: answer.status }));
  signedIn();
  const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
  const [now, next] = [$('#alerts-open'), $('#alerts-open', page)];
  if (now && next && now.textContent !== next.textContent) {
    now.replaceChildren(...next.cloneNode(true).childNodes);
    now.hidden = next.hidden;
  }
  return page;
}

/** The page with what its script gets, as the server would send both now. null where it could not be read: the chip or a
 * strip says so, and the next event tries again. @returns {Promise<{page: Document, data: object}|null>} */
export async function readAgain() {
  const page = await readPage().catch(() => null);
  const block = page && $('#page-data', page);
  return block && { page, data: JSON.parse(block.textContent) };
}

function busy(part) {
  const selection = getSelection();
  return part.matches(':active') || (selection && !selection.isCollapsed && selection.containsNode(part, true));
}

/** Puts one element's content in place of another's, keeping the focus and details as the reader opened or closed them;
 * times are written in the reader's zone. @returns {boolean} changed */
export function swap(part, fresh) {
  if (busy(part)) return false;
  localTimes(fresh);
  const open = new Map($$('details[data-key]', part).map((item) => [item.dataset.key, item.open]));
  if (part.innerHTML === fresh.innerHTML) return false;
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const mark = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.dataset.filter ? `[data-filter="${focused.dataset.filter}"]` : null);
  part.replaceChildren(...fresh.childNodes);
  for (const item of $$('details[data-key]', part)) item.open = open.get(item.dataset.key) ?? item.open;
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

const MOST_PAUSE_MS = 30_000; // a computer that slept makes any work look long

/** Calls `work` at most every `leastMs`, and less often when it takes long: the pause is three times as long. `soon`:
 * at once, or right after the work under way. */
export function paced(work, leastMs) {
  let running = false;
  let wanted = false;
  let soon = false;
  let next = 0;
  let timer = 0;
  async function go() {
    running = true;
    timer = 0;
    wanted = soon = false;
    const start = performance.now();
    try {
      await work();
    } finally {
      next = performance.now();
      next += Math.min(MOST_PAUSE_MS, Math.max(leastMs, 3 * (next - start)));
      running = false;
      if (wanted) ask({ soon });
    }
  }
  function ask(now = {}) {
    wanted = true;
    soon ||= now.soon;
    if (running || (timer && !now.soon)) return;
    clearTimeout(timer);
    timer = setTimeout(go, soon ? 0 : Math.max(0, next - performance.now()));
  }
  return ask;
}
