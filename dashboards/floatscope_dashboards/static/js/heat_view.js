// The heat map on the run page: statistic switch, scrubber, rows by pointer and keyboard, the pinned tensor.
// The scrubber is an element over the plot: moving a Plotly shape would redraw the whole map.
import { $, $$, setAddress, stepText } from './core.js';
import { heatmap } from './api.js';
import { chartTools } from './chart_tools.js';
import { isNumbered, readGrid } from './grid.js';
import { fillHeat } from './heat.js';
import { heatRows } from './heat_rows.js';
import { legend } from './heat_words.js';
import { heatZoom } from './heat_zoom.js';
import { draw, fail, renewed } from './plot.js';
import { say } from './say.js';

const MAX_COLUMNS = 400;
const NARROW_PX = 560;
const NARROW_LEFT_PX = 106;
const NUMBERED_LEFT_PX = 112;
const SLIDER_PX = 4; // half of its thumb lies before its first step

/**
 * @param {() => object} current the page's data @param {() => [number, number]|null} steps the reader's zoom
 * @param {(at: number|null, tensor: string|null) => void} moved the scrubber or the pinned tensor changed
 * @param {(steps: [number, number]|null) => void} zoom shows these steps in all charts, or the whole run
 */
export function heatView(current, steps, moved, zoom) {
  const place = $('#heat');
  const slider = $('#at');
  const more = () => $('#stat-more');
  let chosen = null;
  let block = null;
  let segment = null;
  let grid = null;
  let at = null;
  let byReader = false;
  let asked = 0;
  readAddress();

  const stat = () => {
    const { stats, stat: first } = current();
    return stats.find((item) => item.name === chosen) ?? stats.find((item) => item.name === first) ?? stats[0];
  };
  const shownStat = () => grid?.stat ?? stat();
  const view = { grid: () => grid, stat, box, columnOf, column: () => columnOf(at), step: () => at, run: () => current().run };
  heatZoom(place, view, zoom);
  const rows = heatRows(place, view, { scrubTo, move, pinned: () => moved(at, rows.pinned()) });

  const tools = chartTools({
    host: $('#heat-tools'),
    chart: place,
    after: $('#pinned'),
    title: () => say('Layers over time: {name}', { name: shownStat()?.label ?? '' }),
    run: () => current().run,
    range: () => (grid?.edges.length ? say('Steps {from} to {to}', { from: stepText(grid.edges[0]), to: stepText(grid.edges.at(-1) - 1) }) : ''),
    table: cellsAsTable,
  });

  function readAddress() {
    const query = new URLSearchParams(location.search);
    chosen = query.get('stat');
    block = ['Activations', 'Weights', 'Gradients'].includes(query.get('block')) ? query.get('block') : null;
    segment = /^\d{1,9}$/.test(query.get('segment') ?? '') ? query.get('segment') : null;
    if (/^\d{1,15}$/.test(query.get('at') ?? '')) {
      at = Number(query.get('at'));
      byReader = true;
    }
  }

  async function load() {
    const data = current();
    if (!data.stats.length) return;
    const ticket = (asked += 1);
    const wanted = stat();
    const columns = Math.min(MAX_COLUMNS, Math.max(60, place.clientWidth - 150));
    try {
      const window = { columns: Math.round(columns), steps: steps(), segment };
      const [payload, ...marks] = await Promise.all([
        heatmap(data.run, wanted.name, { ...window, log2: wanted.log2 }),
        ...data.marks.filter((name) => name !== wanted.name).map((name) => heatmap(data.run, name, window)),
      ]);
      if (ticket !== asked) return;
      grid = readGrid(payload, { worst: wanted.worst, order: data.order, marks, block });
      grid.stat = wanted; // what is shown, also while another one is asked for
      await redraw();
      renewed(place);
    } catch (error) {
      if (ticket === asked) fail(place, say('The heat map could not be loaded: {why}.', { why: error.message }), load);
    }
  }

  async function redraw() {
    if (!grid) return;
    const data = current();
    $('#heat-none').hidden = grid.rows.length > 0;
    const figure = fillHeat(data.frames.heat, grid, { stat: shownStat(), onset: data.onset, origin: data.origin });
    for (const title of figure.layout.annotations) {
      const formats = data.formats[title.name];
      const said = { Activations: say('Activations'), Weights: say('Weights'), Gradients: say('Gradients'), Other: say('Other') }[title.name];
      if (said) title.text = `<b>${said}</b>${formats ? (isNumbered(grid.rows) ? '<br>' : ' ') + formats : ''}`;
      if (title.name === 'origin') title.text = `<b>${say('began here')}</b>`;
    }
    figure.layout.margin.l = box().left;
    slider.parentElement.style.marginLeft = `${box().left - SLIDER_PX}px`;
    await draw(place, figure, data);
    legend(grid, shownStat(), data.tokens);
    slider.disabled = !grid.columns.length;
    slider.max = String(Math.max(0, grid.columns.length - 1));
    if (at == null || (!byReader && data.onset != null)) at = data.onset ?? (grid.edges.length ? Math.min(grid.edges.at(-1) - 1, data.last ?? Infinity) : null);
    show();
    rows.redraw();
    tools.refresh();
  }

  // ---- from steps to columns and pixels
  function columnOf(step) {
    if (!grid?.edges.length || step == null) return -1;
    const { edges } = grid;
    let column = 0;
    while (column < edges.length - 2 && step >= edges[column + 1]) column += 1;
    return column;
  }

  function box() {
    const { l, r, t, b } = current().frames.heat.layout.margin;
    const wide = grid && isNumbered(grid.rows) ? NUMBERED_LEFT_PX : l;
    const left = place.clientWidth < NARROW_PX ? NARROW_LEFT_PX : wide;
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
    const outside = column < 0 || at < grid.edges[0] || at >= grid.edges.at(-1);
    scrub.hidden = outside;
    if (column < 0) return;
    const middle = (grid.edges[column] + grid.edges[column + 1]) / 2;
    const x = pixelOf(middle);
    scrub.style.transform = `translateX(${x}px)`;
    scrub.classList.toggle('flip', x > place.clientWidth * 0.7);
    const step = outside ? at : Math.max(grid.edges[column], Math.min(at, grid.edges[column + 1] - 1));
    const text = say('Step {step}', { step: stepText(step) });
    scrub.firstElementChild.textContent = text;
    slider.value = String(column);
    slider.setAttribute('aria-valuetext', text);
    moved(step, rows.pinned());
    rows.moved();
  }

  function scrubTo(step, { remember = true } = {}) {
    if (step == null) return;
    if (!grid?.edges.length) {
      at = step;
      byReader = true;
      return;
    }
    at = Math.round(Math.min(Math.max(step, grid.edges[0]), grid.edges.at(-1) - 1));
    byReader = true;
    setAddress({ at }, { push: remember });
    show();
  }

  function move(columns) {
    if (!grid?.edges.length) return;
    const column = Math.min(Math.max(columnOf(at) + columns, 0), grid.columns.length - 1);
    scrubTo(grid.edges[column], { remember: false });
  }

  // ---- numbers
  function cellsAsTable() {
    const found = [];
    for (const [index, row] of (grid?.rows ?? []).entries()) {
      if (!row) continue;
      const names = row.tensors.map((tensor) => grid.tensors[tensor]);
      const name = names.length === 1 ? names[0] : say('{first} to {last} ({n} tensors)', { first: names[0], last: names.at(-1), n: names.length });
      grid.columns.forEach((payloadColumn, column) => {
        if (payloadColumn == null) return;
        const mark = grid.mark[index][column];
        const value = mark === 1 ? NaN : mark === 2 ? Infinity : grid.value[index][column];
        found.push([name, grid.starts[payloadColumn], grid.ends[payloadColumn], value]);
      });
    }
    const { label, unit } = shownStat();
    return { columns: [say('Tensor'), say('From step'), say('To step'), unit ? `${label} (${unit})` : label], rows: found };
  }

  // ---- switches
  slider.addEventListener('input', () => scrubTo(grid.edges[Number(slider.value)], { remember: false }));
  slider.addEventListener('change', () => setAddress({ at }, { push: true }));
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('button[data-stat]');
    if (button) choose(button.dataset.stat);
  });
  document.addEventListener('change', (event) => {
    if (event.target.id === 'stat-more' && event.target.value) choose(event.target.value);
    if (event.target.id === 'heat-block') {
      block = event.target.value || null;
      setAddress({ block }, { push: true });
      load();
    }
    if (event.target.id === 'heat-segment') {
      segment = event.target.value || null;
      setAddress({ segment }, { push: true });
      load();
    }
  });
  addEventListener('popstate', () => {
    readAddress();
    rows.readAddress();
    press();
    load();
  });
  addEventListener('resize', () => redraw());

  function choose(name) {
    chosen = name;
    setAddress({ stat: chosen }, { push: true });
    press();
    load();
  }

  function press() {
    const { name } = stat();
    for (const item of $$('[data-stat]')) item.setAttribute('aria-pressed', String(item.dataset.stat === name));
    if (more()) {
      more().value = [...more().options].some((option) => option.value === name) ? name : '';
      more().classList.toggle('on', more().value !== '');
    }
    $('#heat-block').value = block ?? '';
    if ($('#heat-segment')) $('#heat-segment').value = segment ?? '';
  }

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
