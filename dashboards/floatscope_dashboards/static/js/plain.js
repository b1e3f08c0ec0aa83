// Pages without data of their own: sign-in and messages.
import { $, $$, wireCopy, wireKeys, wireTheme } from './core.js';

wireTheme();
wireCopy();
wireKeys({ t: () => $('#theme')?.click() });
for (const button of $$('[data-peek]')) {
  button.addEventListener('click', () => {
    const field = document.getElementById(button.dataset.peek);
    const show = field.type === 'password';
    field.type = show ? 'text' : 'password';
    button.textContent = show ? 'Hide' : 'Show';
    button.setAttribute('aria-pressed', String(show));
  });
}
