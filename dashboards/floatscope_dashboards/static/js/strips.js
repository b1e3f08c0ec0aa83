// The one strip at the top of a page whose session has ended, or whose subject was deleted.
import { $, element } from './core.js';
import { say } from './say.js';

const SIGNED_OUT = 'signed-out';

function show(why, text, href, word) {
  if ($('#refused')) return;
  const strip = element('p', { className: 'strip' }, `${text} `);
  strip.id = 'refused';
  strip.dataset.why = why;
  strip.setAttribute('role', 'alert');
  const link = element('a', { text: word });
  link.href = href;
  strip.append(link);
  $('main').prepend(strip);
}

/** The session has ended. The link leads back to exactly this view. */
export function signedOut() {
  if (location.pathname === '/login') return;
  const next = encodeURIComponent(location.pathname + location.search + location.hash);
  show(SIGNED_OUT, say('Your session has ended, so this page no longer updates.'), `/login?next=${next}`, say('Sign in again'));
}

/** What the page shows is no longer on the server. */
export function gone() {
  const run = location.pathname.startsWith('/runs/');
  const text = run ? say('This run was deleted from the server. What you see is what was read before.') : say('This no longer exists on the server. What you see is what was read before.');
  show('gone', text, '/', say('All runs'));
}

/** The server lets this browser in again, maybe from another tab: the link above has the page's state no more. */
export function signedIn() {
  const strip = $('#refused');
  if (strip?.dataset.why === SIGNED_OUT) strip.remove();
}

/** Whether the session still holds: a refused event stream does not say why. */
export async function checkSession() {
  let answer;
  try {
    answer = await fetch('/api/v1/me', { headers: { Accept: 'application/json' }, cache: 'no-store' });
  } catch {
    return; // the server is away, which the live chip says
  }
  if (answer.status === 401) signedOut();
  else if (answer.ok) signedIn();
}
