// The rows of the heat map by pointer and keyboard: tooltip, scrubbing by dragging, and the pinned tensor (t= in the
// address), whose row is marked and which the ruler always shows.
import { $, element, setAddress } from './core.js';
import { LEVELS, MISSING_CODE, NONFINITE_CODE } from './cells.js';
import { spanText, valueText } from './heat_words.js';
import { plural, say } from './say.js';

const TIP_ROWS = 3;
const CLICK_PX = 4;

/**
 * @param {Element} place the plot
 * @param {object} view what is shown: grid(), stat(), box(), column(), columnOf(step), run()
 * @param {{scrubTo: Function, move: Function, pinned: Function}} acts
 */
export function heatRows(place, view, acts) {
  const tip = $('#tip');
  const cursor = $('#rows');
  const note = $('#pinned');
  let row = -1;
  let tensor = null;
  let pressed = null;
  readAddress();

  function readAddress() {
    const asked = new URLSearchParams(location.search).get('t');
    tensor = asked && asked.length <= 1024 ? asked : null;
  }

  // ---- which cell
  function under(event) {
    const grid = view.grid();
    const { left, top, width, height } = view.box();
    const edge = place.getBoundingClientRect();
    const x = event.clientX - edge.left - left;
    const y = event.clientY - edge.top - top;
    if (!grid?.edges.length || x < 0 || x > width || y < 0 || y > height) return null;
    const [first, last] = [grid.edges[0], grid.edges.at(-1)];
    // Of a long run a pixel is many steps: round ones, which the server still knows from before.
    const grain = 2 ** Math.floor(Math.log2(Math.max(1, (last - first) / width)));
    const exact = first + ((last - first) * x) / width;
    const step = grain > 1 ? Math.max(first, Math.floor(exact / grain) * grain) : exact;
    return { step, column: view.columnOf(step), row: Math.min(grid.rows.length - 1, Math.floor((grid.rows.length * y) / height)), x: x + left, y: y + top };
  }

  function cell(at, column) {
    const grid = view.grid();
    const payloadColumn = grid.columns[column];
    const code = payloadColumn == null ? MISSING_CODE : grid.codes[at][payloadColumn];
    const mark = code === NONFINITE_CODE ? grid.kind([at], payloadColumn) : null;
    return { code, text: valueText(grid, view.stat(), code, mark) };
  }

  /** The tensors of a row, the worst at the column first. */
  function ordered(found, column) {
    const low = view.stat().worst === 'low';
    const badness = (at) => {
      const { code } = cell(at, column);
      return code === NONFINITE_CODE ? 1e3 : code > LEVELS ? -1e3 : low ? -code : code;
    };
    return [...found.tensors].sort((a, b) => badness(b) - badness(a));
  }

  // ---- tooltip
  function tell(found, column, x, y) {
    const grid = view.grid();
    const parts = [];
    for (const at of ordered(found, column).slice(0, TIP_ROWS)) {
      const said = say('{name}: {value}', { name: view.stat().label, value: cell(at, column).text });
      parts.push(element('b', { text: grid.tensors[at] }), element('div', { text: said }));
    }
    const { length } = found.tensors;
    if (length > 1) parts.push(element('div', { className: 'faint', text: plural('{n} tensor in this row', '{n} tensors in this row', length) }));
    tip.replaceChildren(...parts, element('div', { className: 'faint num', text: spanText(grid, column) }));
    tip.hidden = false;
    const right = x > place.clientWidth * 0.55;
    tip.style.left = right ? 'auto' : `${x + 14}px`;
    tip.style.right = right ? `${place.clientWidth - x + 14}px` : 'auto';
    tip.style.top = `${Math.min(y + 10, place.clientHeight - 70)}px`;
  }

  function hover(event) {
    const found = under(event);
    const at = found && view.grid().rows[found.row];
    if (at) tell(at, found.column, found.x, found.y);
    else tip.hidden = true;
  }

  // ---- pointer
  place.addEventListener('pointerdown', (event) => {
    const found = under(event);
    if (!found || event.button) return;
    pressed = { x: event.clientX, y: event.clientY, dragged: false, found };
    acts.scrubTo(found.step, { remember: false });
  });
  place.addEventListener('pointermove', hover);
  // On the window: while a button is down, Plotly lays a cover over the page that takes the pointer's events.
  addEventListener('pointermove', (event) => {
    if (!pressed) return;
    pressed.dragged ||= Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) > CLICK_PX;
    const found = under(event);
    if (found && pressed.dragged) acts.scrubTo(found.step, { remember: false });
  });
  addEventListener('pointerup', () => {
    if (!pressed) return;
    const { dragged, found } = pressed;
    pressed = null;
    const at = view.grid().rows[found.row];
    if (dragged) setAddress({ at: view.step() }, { push: true });
    else if (at) pin(view.grid().tensors[ordered(at, found.column)[0]], found.row);
  });
  addEventListener('pointercancel', () => {
    pressed = null;
  });
  place.addEventListener('pointerleave', () => {
    tip.hidden = true;
  });

  // ---- keyboard
  cursor.addEventListener('keydown', (event) => {
    const grid = view.grid();
    if (!grid?.rows.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const jump = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (jump != null) go(jump);
    else if (event.key === 'ArrowRight') acts.move(1);
    else if (event.key === 'ArrowLeft') acts.move(-1);
    else if ((event.key === 'Enter' || event.key === ' ') && grid.rows[row]) pin(grid.tensors[ordered(grid.rows[row], view.column())[0]], row);
    else if (event.key === 'Escape' && !tip.hidden) tip.hidden = true;
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  cursor.addEventListener('focus', () => go(0));
  cursor.addEventListener('blur', () => {
    tip.hidden = true;
  });

  function go(by) {
    const { rows } = view.grid() ?? { rows: [] };
    const real = rows.map((item, at) => (item ? at : -1)).filter((at) => at >= 0);
    if (!real.length) return;
    const now = Math.max(0, real.indexOf(row));
    row = real[Math.min(Math.max(now + by, 0), real.length - 1)];
    placeCursor();
    speak();
  }

  /** Puts the cursor over its row. */
  function placeCursor() {
    const { rows } = view.grid();
    const { left, top, width, height } = view.box();
    const shown = row >= 0 && row < rows.length ? row : 0;
    cursor.style.left = `${left}px`;
    cursor.style.width = `${width}px`;
    cursor.style.top = `${top + (height * shown) / rows.length}px`;
    cursor.style.height = `${Math.max(3, height / rows.length)}px`;
    cursor.setAttribute('aria-valuemax', String(Math.max(1, rows.filter(Boolean).length)));
    cursor.setAttribute('aria-valuenow', String(1 + Math.max(0, rows.slice(0, shown).filter(Boolean).length)));
    cursor.setAttribute('aria-valuetext', words(shown));
    cursor.classList.toggle('pin', tensor != null && rows[shown]?.tensors.some((at) => view.grid().tensors[at] === tensor));
  }

  function words(at) {
    const found = view.grid().rows[at];
    const column = view.column();
    if (!found || column < 0) return '';
    const [worst] = ordered(found, column);
    const values = { tensor: view.grid().tensors[worst], name: view.stat().label, value: cell(worst, column).text, when: spanText(view.grid(), column) };
    return say('{tensor}, {name}: {value}, {when}', values);
  }

  function speak() {
    const found = view.grid().rows[row];
    const column = view.column();
    if (!found || column < 0 || document.activeElement !== cursor) return;
    const { rows } = view.grid();
    const { left, top, width, height } = view.box();
    tell(found, column, left + (width * (column + 0.5)) / view.grid().columns.length, top + (height * row) / rows.length);
  }

  // ---- pinned tensor
  function pin(name, at) {
    row = at;
    tensor = tensor === name ? null : name;
    setAddress({ t: tensor }, { push: true });
    redraw();
    acts.pinned();
  }

  function redraw() {
    const grid = view.grid();
    if (!grid?.rows.length) return;
    const index = tensor == null ? -1 : grid.tensors.indexOf(tensor);
    if (index >= 0) row = grid.rows.findIndex((item) => item?.tensors.includes(index));
    placeCursor();
    tellPinned(index);
  }

  function tellPinned(index) {
    note.hidden = tensor == null;
    if (tensor == null) return;
    const link = element('a', { text: tensor });
    link.href = `/runs/${encodeURIComponent(view.run())}/tensors/${encodeURIComponent(tensor)}?at=${view.step() ?? ''}`;
    const column = view.column();
    const values = { name: view.stat().label, value: index < 0 || column < 0 ? '' : cell(index, column).text, when: column < 0 ? '' : spanText(view.grid(), column) };
    const text = index < 0 ? say('It is not among the rows shown.') : say('{name}: {value}, {when}', values);
    const off = element('button', { className: 'btn sm', text: say('Unpin') });
    off.type = 'button';
    off.addEventListener('click', () => {
      pin(tensor, row);
      cursor.focus();
    });
    note.replaceChildren(element('span', { text: say('Pinned') }), link, element('span', { className: 'num', text }), off);
  }

  /** The scrubber moved: what is said of a step follows. */
  function moved() {
    const grid = view.grid();
    if (!grid?.rows.length) return;
    placeCursor();
    if (tensor != null) tellPinned(grid.tensors.indexOf(tensor));
    speak();
  }

  return { redraw, moved, readAddress, pinned: () => tensor };
}
