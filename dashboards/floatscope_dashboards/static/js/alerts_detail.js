// One alert in detail: beside the list where there is room, else a dialog over it that keeps the focus inside.
import { act, addNote, those, unmute } from './alerts_actions.js';
import { silenceRows } from './alerts_bulk.js';
import { go, idsOf, refresh, rowOf, rows } from './alerts_list.js';
import { $, copyText } from './core.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';

const BESIDE = matchMedia('(min-width: 1101px)');

export const isOpen = () => Boolean($('#detail .dh'));
const head = () => $('#detail .dh');
let closing = false; // Esc in a dialog is both a key and a wish to cancel
/** The row that the address names, also while its detail is still on its way; else the row of what is shown. */
const currentRow = () => rows().find((row) => $('.t', row).pathname === location.pathname) ?? rows().find((row) => $('.incr.cur', row));

/** Shows the detail as the room allows, or hides it. */
export function present() {
  const dialog = $('#detail');
  if (!dialog) return;
  const open = isOpen();
  $('#split').classList.toggle('open', open);
  const beside = BESIDE.matches;
  if (dialog.open && (!open || beside === dialog.matches(':modal'))) dialog.close();
  if (!open || dialog.open) return;
  if (beside) dialog.setAttribute('open', ''); // show() would take the focus
  else {
    dialog.showModal();
    $('#dt').focus();
  }
}

/** Closes the detail; the focus goes to the row it belonged to. */
export async function close() {
  if (!isOpen() || closing) return;
  closing = true;
  const key = currentRow()?.dataset.key;
  try {
    await go($('#close-detail').href);
  } finally {
    closing = false;
  }
  const row = key && rowOf(key);
  (row ? $('.t', row) : $('#main'))?.focus({ preventScroll: true });
}

/** Opens the detail of a link, with the focus on its heading. */
export async function open(href) {
  if (await go(href)) $('#dt')?.focus({ preventScroll: true });
}

/** The next or previous incident of the list. */
export function openNext(by) {
  const all = rows();
  const at = all.indexOf(currentRow());
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by];
  if (next) {
    $('.t', next).scrollIntoView({ block: 'nearest' });
    open($('.t', next).href);
  }
}

/** The alerts that a button of the detail is about: all of the incident, or the one that is open. */
async function meant(action) {
  const { alert } = head().dataset;
  if (action === 'not_the_cause' || !$('#whole')?.checked) return [alert];
  return those(await idsOf(head()), action);
}

const after = () => refresh({ force: true });

async function run(action) {
  const { alert } = head().dataset;
  if (action === 'silence') return silenceRows([head()]);
  if (action === 'unmute') {
    await unmute(alert);
    notice(say('Messages about it are let out again.'));
    return after();
  }
  const ids = await meant(action);
  let body = { action };
  if (action === 'acknowledge') body = await (await import('./alerts_asks.js')).askAcknowledge(ids.length);
  if (action === 'not_the_cause') body = await (await import('./alerts_asks.js')).askNotTheCause();
  return body && act(ids, body, { after });
}

export function wireDetail() {
  BESIDE.addEventListener('change', present);
  document.addEventListener('click', async (event) => {
    const button = event.target.closest?.('#detail [data-do]');
    if (button) {
      button.disabled = true;
      await run(button.dataset.do).catch(failure);
      button.disabled = false;
    } else if (event.target.closest?.('#copy-link')) {
      copyText(new URL(`/alerts/${encodeURIComponent(head().dataset.alert)}`, location.origin).href).then(
        () => notice(say('Link copied')),
        () => failure(say('The browser does not allow to copy here.')),
      );
    }
  });
  document.addEventListener('submit', async (event) => {
    if (event.target.id !== 'add-note') return;
    event.preventDefault();
    const field = $('#note');
    const text = field.value;
    if (!text.trim()) return;
    try {
      await addNote(head().dataset.alert, text);
      field.value = '';
      notice(say('Note added'));
      await after();
    } catch (error) {
      failure(error);
    }
  });
  $('#detail')?.addEventListener('cancel', (event) => {
    event.preventDefault(); // Esc: the address changes with it
    close();
  });
  present();
}
