// One line at the bottom that says what was done, with Undo where possible, or what failed. It is read out and never takes
// the focus. What was done goes away by itself, not while pointer or focus is on it; an error stays until it is closed.
//
//   notice(say('Acknowledged'), { undo: () => send('POST', `${path}/reopen`) });
//   failure(error);      // an Error of api.js, or a text
import { element } from './core.js';
import { say } from './say.js';

const STAYS_MS = 6000;
const STAYS_WITH_UNDO_MS = 15_000;

/** The two live regions must be on the page before they speak. */
const [done, failed] = ['status', 'alert'].map((role) => {
  const place = element('div', { className: `notice ${role}` });
  place.setAttribute('role', role);
  document.body.append(place);
  return place;
});
let timer = 0;

/** Behind an open modal dialog everything is inert, also Undo: the line then stands in that dialog. */
function comeForward() {
  const dialog = [...document.querySelectorAll('dialog:modal')].at(-1);
  const home = dialog ?? document.body;
  if (done.parentNode === home) return;
  home.append(done, failed);
  dialog?.addEventListener('close', () => document.body.append(done, failed), { once: true });
}

/** @param {string} text @param {{undo?: () => Promise<unknown>}} [options] */
export function notice(text, { undo } = {}) {
  const buttons = [];
  if (undo) {
    const button = element('button', { className: 'btn sm', text: say('Undo') });
    button.type = 'button';
    button.addEventListener('click', async () => {
      hide(done);
      try {
        await undo();
        notice(say('Undone'));
      } catch (error) {
        failure(error);
      }
    });
    buttons.push(button);
  }
  comeForward();
  done.replaceChildren(element('span', { text }), ...buttons, closing(done));
  clearTimeout(timer);
  const leave = () => {
    timer = setTimeout(() => (done.matches(':hover, :focus-within') ? leave() : hide(done)), undo ? STAYS_WITH_UNDO_MS : STAYS_MS);
  };
  leave();
}

/** @param {Error|string} error what went wrong: its message is shown as the server said it */
export function failure(error) {
  comeForward();
  failed.replaceChildren(element('span', { text: sentence(typeof error === 'string' ? error : error.message) }), closing(failed));
}

function closing(place) {
  const button = element('button', { className: 'btn sm', text: say('Close') });
  button.type = 'button';
  button.addEventListener('click', () => hide(place));
  return button;
}

function hide(place) {
  const inside = place.contains(document.activeElement);
  place.replaceChildren();
  if (inside) document.getElementById('main')?.focus({ preventScroll: true });
}

/** The messages of api.js are clauses. */
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
