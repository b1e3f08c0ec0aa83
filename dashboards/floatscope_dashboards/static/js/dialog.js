// Modal dialogs: the browser's own <dialog>, so that the rest of the page is inert and Esc closes it. The focus goes
// back to where it was, also when that element was put in place anew meanwhile.
//
//   const found = await ask({
//     title: say('Acknowledge'), text: say('Others see your note.'), confirm: say('Acknowledge'),
//     fields: [{ name: 'note', label: say('Note'), type: 'textarea', max: 2000 }],
//     send: (values) => send('POST', path, values),   // optional: the dialog stays open and shows what went wrong
//   });
//   if (found) ...   // {note: '...'}; null when the reader closed it
//
// `preview: (values) => text` (maybe a promise) is asked at the beginning and after every change; its text stands above the
// buttons. An error of `send` that has `field` is shown at that field.
//
// Kinds of fields: text (default), textarea, number, datetime-local, password, select and checks (both with options
// [[value, word], ...]; checks give a list), checkbox (gives true or false). Every field may have hint, required, value,
// max (characters), min, step, placeholder. Nothing here understands markup: names stay text.
import { element } from './core.js';
import { failure } from './notice.js';
import { say } from './say.js';

/**
 * Opens a dialog around `content`. @param {{label: string, className?: string, onClose?: () => void}} options
 * @returns {HTMLDialogElement} `close()` closes it and removes it from the page
 */
export function openDialog(content, { label, className = '', onClose = () => {} }) {
  const before = document.activeElement;
  const dialog = element('dialog', { className: `dlg ${className}` });
  dialog.setAttribute('aria-label', label);
  dialog.append(...content);
  let pressed = null;
  dialog.addEventListener('pointerdown', (event) => {
    pressed = event.target;
  });
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog && pressed === dialog) dialog.close(); // beside it: the backdrop counts as the dialog
  });
  dialog.addEventListener('keydown', (event) => event.stopPropagation()); // the page's keys are not for in here
  dialog.addEventListener('close', () => {
    dialog.remove();
    giveBack(before);
    onClose();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** The focus to where it was; to its successor of the same id if the page was refreshed; never nowhere. */
function giveBack(before) {
  const same = before?.isConnected ? before : before?.id ? document.getElementById(before.id) : null;
  (same && same !== document.body ? same : document.getElementById('main'))?.focus({ preventScroll: true });
}

/**
 * Asks for values or for consent. What makes the form is loaded when it is needed.
 * @param {{title: string, text?: string, fields?: object[], confirm?: string, danger?: boolean,
 *   send?: (values: object) => Promise<unknown>, preview?: (values: object) => Promise<string>|string}} options `danger`
 *   colours the button of what cannot be undone
 * @returns {Promise<object|null>} the values; null when it was closed
 */
export async function ask(options) {
  let form;
  try {
    form = await import('./dialog_form.js');
  } catch {
    failure(say('The server does not answer, so this cannot be loaded now.'));
    return null;
  }
  return form.askForm(options);
}
