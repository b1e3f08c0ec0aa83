// Which columns of the runs table are shown. The browser remembers it.
import { $, $$ } from './core.js';

const KEY = 'floatscope-columns';

function hidden() {
  try {
    return new Set((localStorage.getItem(KEY) ?? '').split(' ').filter(Boolean));
  } catch {
    return new Set(); // storage is off here: all columns are shown
  }
}

/** Leaves out what the reader does not want to see. */
export function applyColumns() {
  const out = hidden();
  $('#runs')?.setAttribute('data-hide', [...out].join(' '));
  for (const box of $$('[data-column]')) box.checked = !out.has(box.dataset.column);
}

/** Listens to the menu; it closes by Escape and by a click elsewhere. */
export function wireColumns() {
  document.addEventListener('change', (event) => {
    const column = event.target.dataset?.column;
    if (!column) return;
    const out = hidden();
    if (event.target.checked) out.delete(column);
    else out.add(column);
    try {
      localStorage.setItem(KEY, [...out].join(' '));
    } catch {
      $('#runs')?.setAttribute('data-hide', [...out].join(' ')); // not remembered, but done
      return;
    }
    applyColumns();
  });
  document.addEventListener('click', (event) => {
    const menu = $('details.columns[open]');
    if (menu && !menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener('keydown', (event) => {
    const menu = event.key === 'Escape' && $('details.columns[open]');
    if (!menu) return;
    menu.open = false;
    $('summary', menu).focus();
  });
}
