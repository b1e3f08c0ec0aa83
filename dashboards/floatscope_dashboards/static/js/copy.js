// Copying, loaded when first asked for.
import { announce } from './core.js';
import { say } from './say.js';

/** Puts a text on the clipboard; rejects where the browser does not allow it. */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Plain http on another machine has no clipboard interface: select the text in a field and copy that.
  const field = document.createElement('textarea');
  field.value = text;
  field.setAttribute('readonly', '');
  field.className = 'sr';
  const before = document.activeElement;
  (before?.closest('dialog') ?? document.body).append(field); // a dialog keeps the selection to itself
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  before?.focus({ preventScroll: true });
  if (!done) throw new Error('copying is not allowed here');
}

/** Copies an element's text and says so on the button. @param {HTMLElement} button @param {HTMLElement} source */
export async function copyOf(button, source) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  try {
    await copyText(source.textContent); // not innerText: that of what is folded away is empty
    button.textContent = say('Copied');
    announce(say('Copied.'));
  } catch {
    button.textContent = say('Select and copy it');
    getSelection().selectAllChildren(source);
  }
  setTimeout(() => {
    button.textContent = before;
  }, 1600);
}
