// Selected runs: checkboxes in the rows, kept in the address (sel=) over pages and filters; two can be compared.
import { $, $$, goTo, setAddress } from './core.js';
import { notice } from './notice.js';
import { plural, say } from './say.js';
import { reorder } from './rows.js';

const picked = new Map(); // run -> the baseline it names, '' where that is not known

/** The address with the selection in it. */
export function withPicks(href) {
  const address = new URL(href, location.origin);
  if (picked.size) address.searchParams.set('sel', [...picked.keys()].join(','));
  return address.href;
}

/** Shows in rows and button what is selected. */
export function showPicks() {
  for (const row of $$('#runs tr[data-run]')) {
    const on = picked.has(row.dataset.run);
    if (on) picked.set(row.dataset.run, row.dataset.baseline ?? '');
    row.classList.toggle('sel', on);
    $('[data-select]', row).checked = on;
  }
  const button = $('#compare');
  if (!button) return;
  button.disabled = !pair();
  button.textContent = picked.size ? plural('Compare {n}', 'Compare {n}', picked.size) : say('Compare');
  button.title = pair() ? '' : say('Select two runs to compare them.');
}

/** Selects a row's run, or no longer. @param {HTMLTableRowElement|null} [row] */
export function toggle(row) {
  if (!row) return;
  const { run, baseline = '' } = row.dataset;
  if (!picked.delete(run)) picked.set(run, baseline);
  setAddress({ sel: [...picked.keys()].join(',') });
  showPicks();
}

/** [run, baseline] to compare: two selected ones, or one and the baseline it names; null without. */
function pair() {
  const runs = [...picked.keys()];
  if (runs.length === 1 && picked.get(runs[0])) return [runs[0], picked.get(runs[0])];
  if (runs.length !== 2) return null;
  const [first, second] = runs;
  return picked.get(second) === first ? [second, first] : [first, second];
}

/** Opens the comparison of what is selected, or says what to select. */
export function compare() {
  const chosen = pair();
  if (chosen) goTo(`/compare?${new URLSearchParams({ run: chosen[0], baseline: chosen[1] })}`);
  else notice(say('Select two runs to compare them.'));
}

/** Listens to checkboxes and buttons, and reads the selection of the address. */
export function wirePicks() {
  const runs = (new URLSearchParams(location.search).get('sel') ?? '').split(',').filter(Boolean);
  for (const run of runs.slice(0, 50)) picked.set(run, '');
  document.addEventListener('change', (event) => {
    if (event.target.matches?.('[data-select]')) toggle(event.target.closest('tr'));
  });
  document.addEventListener('click', (event) => {
    if (event.target.closest?.('#compare')) compare();
    if (event.target.closest?.('#reorder') && reorder()) showPicks();
  });
}
