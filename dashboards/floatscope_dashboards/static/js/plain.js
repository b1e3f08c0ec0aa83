// Pages without data of their own: sign-in and messages.
import { $$ } from './core.js';
import { say } from './say.js';
import { startShell } from './shell.js';

startShell();
for (const button of $$('[data-peek]')) {
  button.addEventListener('click', () => {
    const field = document.getElementById(button.dataset.peek);
    const show = field.type === 'password';
    field.type = show ? 'text' : 'password';
    button.textContent = show ? say('Hide') : say('Show');
    button.setAttribute('aria-pressed', String(show));
  });
}
