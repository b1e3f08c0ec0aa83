// Silences of the page of rules: a new one, and ending one now.
import { $ } from './core.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';

const dialogs = () => import('./silence_dialog.js'); // read when somebody needs it

/** @param {{projects: string[], families: [string, string][], causes: [string, string][]}} data @param {() => Promise<void>} refresh */
export function wireSilences(data, refresh) {
  $('#add-silence').addEventListener('click', async () => {
    const where = data.projects.map((name) => [`project:${name}`, say('Project {name}', { name })]);
    const families = data.families.map(([family, word]) => [`family:${family}`, say('Family: {name}', { name: word })]);
    const causes = data.causes.map(([cause, word]) => [`cause:${cause}`, word]);
    try {
      (await dialogs()).askSilence({ where, what: [['', say('Every finding')], ...families, ...causes] }, refresh);
    } catch (error) {
      failure(error);
    }
  });
  $('#silences').addEventListener('click', async (event) => {
    const button = event.target.closest('[data-end]');
    if (!button) return;
    button.disabled = true;
    try {
      await (await dialogs()).endSilence(button.dataset.end);
      notice(say('The silence has ended. What it held back and still fires is told once.'));
      await refresh();
      $('#silences').focus({ preventScroll: true });
    } catch (error) {
      button.disabled = false;
      failure(error);
    }
  });
}
