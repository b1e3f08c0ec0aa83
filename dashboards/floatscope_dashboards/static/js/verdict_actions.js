// The buttons with data-act in the verdict: each asks where it must, tells the server, says what was done with Undo where
// that is possible, and has the page read again (verdict_acts.js).
import { $ } from './core.js';
import { failure } from './notice.js';
import { say } from './say.js';

/** @param {() => object} current the page's data @param {() => void} changed reads the page again */
export function wireActions(current, changed) {
  document.addEventListener('click', async (event) => {
    const button = event.target.closest?.('button[data-act]');
    if (!button || button.disabled) return;
    button.disabled = true;
    try {
      const { actsOf } = await import('./verdict_acts.js');
      await actsOf(current, changed)[button.dataset.act](button.dataset.targets.split(' '), button);
    } catch (error) {
      failure(say('That did not work: {why}.', { why: error.message }));
    } finally {
      button.disabled = false;
    }
  });

  let framework = '';
  document.addEventListener('change', (event) => {
    if (event.target.id !== 'copy-framework') return;
    framework = event.target.selectedOptions[0].textContent;
    restore();
  });

  /** The framework chosen stays chosen when the verdict is put in place anew. */
  function restore() {
    const choice = $('#copy-framework');
    const option = choice && [...choice.options].find((item) => item.textContent === framework);
    if (!option) return;
    choice.value = option.value;
    $('#copy-setting').dataset.copy = option.value;
  }

  return { restore, acknowledge: () => $('[data-act=acknowledge]')?.click() };
}
