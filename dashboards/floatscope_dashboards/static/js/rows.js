// Rows of the overview that stay fresh without jumping: while the pointer or the focus is in the table, rows keep
// their places and a button offers the new order.
import { $, $$ } from './core.js';
import { plural } from './say.js';
import { swap } from './swap.js';

let waiting = null;

const inTable = () => $('#runs')?.matches(':hover, :focus-within') ?? false;
const rowsOf = (root) => $$('tr[data-run]', root);
const orderOf = (root) => rowsOf(root).map((row) => row.dataset.run);

/** How many rows must move, come or go to get from one order to the other. */
export function moves(before, after) {
  const at = new Map(before.map((run, index) => [run, index]));
  const tails = []; // the longest rising row of old places stays where it is
  let kept = 0;
  for (const place of after.map((run) => at.get(run)).filter((place) => place !== undefined)) {
    let low = 0;
    let high = tails.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tails[middle] < place) low = middle + 1;
      else high = middle;
    }
    tails[low] = place;
    kept = tails.length;
  }
  return Math.max(before.length, after.length) - kept;
}

/** Puts fresh rows in place of the present ones. @param {Element} fresh the table's box as it is now */
export function freshen(fresh, { live }) {
  const box = $('.tblwrap');
  const changed = moves(orderOf(box), orderOf(fresh));
  if (!live || !changed || !inTable()) {
    waiting = null;
    if (!changed && inTable()) inPlace(box, fresh);
    else swap(box, fresh);
  } else {
    waiting = fresh.cloneNode(true);
    inPlace(box, fresh);
  }
  button(changed);
}

function inPlace(box, fresh) {
  if ($('thead', box) && $('thead', fresh)) swap($('thead', box), $('thead', fresh));
  const byRun = new Map(rowsOf(fresh).map((row) => [row.dataset.run, row]));
  for (const row of rowsOf(box)) {
    const other = byRun.get(row.dataset.run);
    row.classList.toggle('gone', !other);
    if (!other) continue;
    for (const cell of row.cells) {
      const next = other.cells[cell.cellIndex];
      if (!next || cell.contains(document.activeElement) || cell.classList.contains('c-sel')) continue;
      cell.className = next.className;
      cell.title = next.title;
      swap(cell, next);
    }
  }
}

function button(changed) {
  const reorder = $('#reorder');
  if (!reorder) return;
  reorder.hidden = !waiting;
  if (waiting) reorder.textContent = plural('{n} row changed order', '{n} rows changed order', changed);
}

/** The new order that waits, put in place. @returns {boolean} whether one waited */
export function reorder() {
  if (!waiting) return false;
  const box = $('.tblwrap');
  const hidden = $('#runs')?.dataset.hide ?? '';
  box.replaceChildren(...waiting.childNodes);
  $('#runs')?.setAttribute('data-hide', hidden);
  waiting = null;
  button(0);
  return true;
}
