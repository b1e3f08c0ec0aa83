// The heat map on the run page: statistic switch, scrubber, hover, and the list of tensors at the scrubbed step.
// The scrubber is an element over the plot: moving a Plotly shape would redraw the whole map.
import { $, $$, NARROW_SPACE, element, numberText, setAddress, stepText, theme } from './core.js';
import { heatmap } from './api.js';
import { LEVELS, MISSING_CODE, NONFINITE_CODE } from './cells.js';
import { readGrid, splitTensor } from './grid.js';
import { fillHeat } from './heat.js';
import { draw, fail } from './plot.js';

const MAX_COLUMNS = 400;
const LISTED = 9;
const TIP_ROWS = 3;
const BAD_FROM = 0.02;
const NARROW_PX = 560;
const NARROW_LEFT_PX = 96;
const MARK_WORD = { 1: 'NaN', 2: 'Inf' };

/** @param {() => object} current the page's data @param {() => [number, number]|null} steps the reader's zoom */
export function heatView(current, steps) {
  const place = $('#heat');
  const slider = $('#at');
  const tip = $('#tip');
  const query = new URLSearchParams(location.search);
  let chosen = query.get('stat');
  let grid = null;
  let at = /^\d{1,15}$/.test(query.get('at') ?? '') ? Number(query.get('at')) : null;
  let moved = at != null;
  let asked = 0;

  const stat = () => {
    const { stats, stat: first } = current();
    return stats.find((item) => item.name === chosen) ?? stats.find((item) => item.name === first) ?? stats[0];
  };

  async function load() {
    const data = current();
    if (!data.stats.length) return;
    const ticket = (asked += 1);
    const wanted = stat();
    const columns = Math.min(MAX_COLUMNS, Math.max(60, place.clientWidth - 150));
    try {
      const window = { columns: Math.round(columns), steps: steps() };
      const [payload, ...marks] = await Promise.all([
        heatmap(data.run, wanted.name, { ...window, log2: wanted.log2 }),
        ...data.marks.map((name) => heatmap(data.run, name, window)),
      ]);
      if (ticket !== asked) return;
      grid = readGrid(payload, { worst: wanted.worst, order: data.order, marks });
      await redraw();
    } catch (error) {
      if (ticket === asked) fail(place, `The heat map could not be loaded: ${error.message}.`);
    }
  }

  async function redraw() {
    if (!grid) return;
    const data = current();
    const figure = fillHeat(data.frames.heat, grid, { stat: stat(), onset: data.onset, origin: data.origin });
    for (const title of figure.layout.annotations) {
      const block = title.text.replace(/<\/?b>/g, '');
      if (data.formats[block]) title.text += ` ${data.formats[block]}`;
    }
    figure.layout.margin.l = box().left;
    await draw(place, figure, data);
    legend(data);
    slider.disabled = !grid.columns.length;
    slider.max = String(Math.max(0, grid.columns.length - 1));
    if (!moved) at = data.onset ?? grid.edges.at(-1) ?? null;
    show();
  }

  // ---- from steps to columns and pixels
  function columnOf(step) {
    const { edges } = grid;
    if (!edges.length || step == null) return -1;
    let column = 0;
    while (column < edges.length - 2 && step >= edges[column + 1]) column += 1;
    return column;
  }

  function box() {
    const { l, r, t, b } = current().frames.heat.layout.margin;
    const left = place.clientWidth < NARROW_PX ? NARROW_LEFT_PX : l;
    return { left, top: t, width: place.clientWidth - left - r, height: place.clientHeight - t - b };
  }

  function pixelOf(step) {
    const { left, width } = box();
    const [first, last] = [grid.edges[0], grid.edges.at(-1)];
    return left + (width * (Math.min(Math.max(step, first), last) - first)) / (last - first);
  }

  function show() {
    const column = columnOf(at);
    const scrub = $('#scrub');
    scrub.hidden = column < 0;
    if (column < 0) return list(-1);
    const middle = (grid.edges[column] + grid.edges[column + 1]) / 2;
    const x = pixelOf(middle);
    scrub.style.transform = `translateX(${x}px)`;
    scrub.classList.toggle('flip', x > place.clientWidth * 0.7);
    scrub.firstElementChild.textContent = `Step ${stepText(Math.max(grid.edges[column], Math.min(at, grid.edges[column + 1] - 1)))}`;
    slider.value = String(column);
    slider.setAttribute('aria-valuetext', scrub.firstElementChild.textContent);
    list(column);
  }

  function scrubTo(step, { remember = true } = {}) {
    if (!grid?.edges.length || step == null) return;
    at = Math.round(Math.min(Math.max(step, grid.edges[0]), grid.edges.at(-1) - 1));
    moved = true;
    if (remember) setAddress({ at });
    show();
  }

  function move(columns) {
    if (!grid?.edges.length) return;
    const column = Math.min(Math.max(columnOf(at) + columns, 0), grid.columns.length - 1);
    scrubTo(grid.edges[column]);
  }

  // ---- words
  function valueText(code, mark) {
    if (code === NONFINITE_CODE) return MARK_WORD[mark];
    if (code > LEVELS) return 'no data';
    const { unit, decimals } = stat();
    // "|| 0": a tiny negative number is 0, not -0.
    return numberText(Number(grid.valueOf(code).toFixed(decimals)) || 0) + (unit ? NARROW_SPACE + unit : '');
  }

  /** How bad a cell is, 0 to 1; above it what is not finite, below it what is missing. */
  function badness(code) {
    if (code === NONFINITE_CODE) return 2;
    if (code > LEVELS) return -1;
    const { worst, ramp, low, high } = stat();
    const value = grid.valueOf(code);
    const share = ramp === 'both' ? value / low : worst === 'low' ? (high - value) / (high - low) : (value - low) / (high - low);
    return Math.min(1, Math.max(0, share));
  }

  /** Orders tensors by their value, the worst first. */
  function worse(a, b) {
    if (a.code > LEVELS || b.code > LEVELS) return badness(b.code) - badness(a.code);
    return stat().worst === 'low' ? a.code - b.code : b.code - a.code;
  }

  function list(column) {
    const payloadColumn = column < 0 ? null : grid.columns[column];
    const sub = column < 0 ? '' : spanText(column);
    $('#worst-sub').textContent = sub;
    if (payloadColumn == null) {
      $('#worst').replaceChildren(element('li', { className: 'muted', text: 'No data at this step.' }));
      return;
    }
    const found = [];
    grid.tensors.forEach((name, index) => {
      const item = { name, index, code: grid.codes[index][payloadColumn] };
      if (item.code === MISSING_CODE || (found.length === LISTED && worse(item, found.at(-1)) >= 0)) return;
      found.push(item);
      found.sort(worse);
      found.length = Math.min(found.length, LISTED);
    });
    $('#worst').replaceChildren(...found.map((item) => tensorLine(item, payloadColumn)));
  }

  function tensorLine({ name, index, code }, payloadColumn) {
    const { layer, role } = splitTensor(name);
    const mark = code === NONFINITE_CODE ? grid.kind([index], payloadColumn) : null;
    const share = Math.min(1, badness(code));
    const bad = stat().ramp !== 'none' && share > BAD_FROM;
    const where = element('span', { className: 'n' }, `${layer} `, element('span', { className: 'role', text: role }));
    const bar = element('span', { className: 'bar' }, element('i'));
    bar.firstElementChild.style.width = `${100 * share}%`;
    const className = code === NONFINITE_CODE ? 'nf' : bad ? 'bad' : '';
    return element('li', { className }, where, element('span', { className: 'v', text: valueText(code, mark) }), bar);
  }

  function spanText(column) {
    const at0 = grid.columns[column];
    if (at0 == null) return 'hole in the data';
    const [from, to] = [grid.starts[at0], grid.ends[at0]];
    return from === to ? `step ${stepText(from)}` : `steps ${stepText(from)} to ${stepText(to)}, worst value`;
  }

  function legend(data) {
    const item = stat();
    const values = data.tokens[theme()][`ramp-${item.ramp}`];
    const ramp = element('i', { className: 'ramp' });
    ramp.style.background = `linear-gradient(90deg,${values.map(([place0, colour]) => `${colour} ${place0 * 100}%`).join()})`;
    const scale = element('span', {}, `${item.label}${item.unit ? `, ${item.unit}` : ''}: `);
    scale.append(element('span', { className: 'num', text: `${item.low_word ? `${item.low_word} ` : ''}${numberText(item.low)}` }), ramp);
    const high = numberText(item.high) + (item.high === 100 ? '' : '+') + (item.high_word ? ` ${item.high_word}` : '');
    scale.append(element('span', { className: 'num', text: high }));
    const swatches = [['k-nan', 'NaN'], ['k-inf', 'Inf'], ['k-gap', 'no data']].map(([className, text]) =>
      element('span', {}, element('i', { className }), text),
    );
    $('#heat-legend').replaceChildren(scale, ...swatches, element('span', { className: 'faint', text: 'Each cell shows its worst value' }));
  }

  // ---- pointer
  function under(event) {
    const { left, top, width, height } = box();
    const edge = place.getBoundingClientRect();
    const x = event.clientX - edge.left - left;
    const y = event.clientY - edge.top - top;
    if (!grid?.edges.length || x < 0 || x > width || y < 0 || y > height) return null;
    const [first, last] = [grid.edges[0], grid.edges.at(-1)];
    const step = first + ((last - first) * x) / width;
    return { step, column: columnOf(step), row: Math.min(grid.rows.length - 1, Math.floor((grid.rows.length * y) / height)), x: x + left, y: y + top };
  }

  function hover(event) {
    const found = under(event);
    const row = found && grid.rows[found.row];
    const payloadColumn = found && grid.columns[found.column];
    tip.hidden = !row;
    if (!row) return;
    const parts = [];
    for (const index of row.tensors.slice(0, TIP_ROWS)) {
      const code = payloadColumn == null ? MISSING_CODE : grid.codes[index][payloadColumn];
      const mark = code === NONFINITE_CODE ? grid.kind([index], payloadColumn) : null;
      parts.push(element('b', { text: grid.tensors[index] }), element('div', { text: `${stat().label}: ${valueText(code, mark)}` }));
    }
    if (row.tensors.length > TIP_ROWS) parts.push(element('div', { className: 'faint', text: `and ${row.tensors.length - TIP_ROWS} more in this row` }));
    tip.replaceChildren(...parts, element('div', { className: 'faint num', text: spanText(found.column) }));
    const right = found.x > place.clientWidth * 0.55;
    tip.style.left = right ? 'auto' : `${found.x + 14}px`;
    tip.style.right = right ? `${place.clientWidth - found.x + 14}px` : 'auto';
    tip.style.top = `${Math.min(found.y + 10, place.clientHeight - 70)}px`;
  }

  let pressed = false;
  place.addEventListener('pointerdown', (event) => {
    const found = under(event);
    pressed = found != null;
    if (found) scrubTo(found.step, { remember: false });
  });
  place.addEventListener('pointermove', hover);
  // On the window: while a button is down, Plotly lays a cover over the page that takes the pointer's events.
  addEventListener('pointermove', (event) => {
    const found = pressed && under(event);
    if (found) scrubTo(found.step, { remember: false });
  });
  addEventListener('pointerup', () => {
    if (pressed) setAddress({ at });
    pressed = false;
  });
  place.addEventListener('pointerleave', () => {
    tip.hidden = true;
  });
  slider.addEventListener('input', () => scrubTo(grid.edges[Number(slider.value)], { remember: false }));
  slider.addEventListener('change', () => setAddress({ at }));
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('button[data-stat]');
    if (!button) return;
    chosen = button.dataset.stat;
    setAddress({ stat: chosen });
    press();
    load();
  });
  function press() {
    for (const item of $$('[data-stat]')) item.setAttribute('aria-pressed', String(item.dataset.stat === stat().name));
  }
  addEventListener('resize', () => redraw());

  /** After the server's HTML was read again: new statistics, a first onset. */
  function refreshed() {
    $('#layers').hidden = !current().stats.length;
    $('#no-layers').hidden = current().stats.length > 0;
    $('#to-onset').hidden = current().onset == null;
    if (current().stats.length) press();
  }
  refreshed();

  return { load, redraw, scrubTo, move, refreshed };
}
