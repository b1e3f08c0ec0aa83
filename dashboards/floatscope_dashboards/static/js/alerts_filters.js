// The filters beside the list: every change is an address of its own.
import { go } from './alerts_list.js';
import { $, $$ } from './core.js';

const GROUPS = ['state', 'severity', 'family'];
const ONE = ['run', 'rule'];
const PHONE = matchMedia('(max-width: 640px)');

/** The address for what the form has chosen now. A group in which all or nothing is ticked filters nothing. */
function address(form) {
  const query = new URLSearchParams(location.search);
  for (const name of [...GROUPS, ...ONE, 'mine', 'show', 'unfold']) query.delete(name);
  for (const name of GROUPS) {
    const boxes = $$(`input[name="${name}"]`, form);
    const on = boxes.filter((box) => box.checked).map((box) => box.value);
    if (on.length && on.length < boxes.length) query.set(name, on.join(','));
  }
  for (const name of ONE) if (form.elements[name].value) query.set(name, form.elements[name].value);
  if (form.elements.mine.checked) query.set('mine', '1');
  const text = query.toString().replaceAll('%2C', ',');
  return location.pathname + (text ? `?${text}` : '');
}

export function wireFilters() {
  if (PHONE.matches && $('#rail')) $('#rail').open = false;
  document.addEventListener('change', (event) => {
    const form = event.target.closest?.('#filters');
    if (form) go(address(form));
  });
}
