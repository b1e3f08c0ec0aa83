// The panels on the tensor page: reads what the screen can show, draws it, lets the reader zoom, says what is shown.
import { $, element, stepText } from './core.js';
import { get } from './api.js';
import { readBins } from './bins.js';
import { chartTools } from './chart_tools.js';
import { draw, fail, renewed } from './plot.js';
import { plural, say } from './say.js';
import { sentences } from './sentences.js';
import { extentOf, fillPanels, readPanels, SHADOW, withSpace } from './tensor_fill.js';

const MIN_POINTS = 200;
const MAX_POINTS = 900;

/**
 * @param {() => object} current the page's data
 * @param {object} view what the reader looks at: range, and what axis of steps
 */
export function panelsView(current, view) {
  const place = $('#panels');
  let series = null;
  let read = null;
  let whole = null;
  let timesNote = '';
  let asked = 0;
  let pressed = false;
  let wired = false;
  let limited = false;

  async function load() {
    const data = current();
    const ticket = (asked += 1);
    const points = Math.min(MAX_POINTS, Math.max(MIN_POINTS, place.clientWidth));
    const query = { tensor: data.tensor, points, rank: data.rank, from: view.range && Math.floor(view.range[0]), to: view.range && Math.ceil(view.range[1]) };
    const one = (stat) => get(`/api/v1/runs/${encodeURIComponent(data.run)}/series`, { ...query, stat });
    const stats = [...data.panels.map((panel) => panel.stat), ...data.nonfinite];
    const shadowed = data.shadow && stats.includes('scale');
    try {
      const [shadow, ...found] = await Promise.all([shadowed ? optional(one(SHADOW)) : null, ...stats.map(one)]);
      if (ticket !== asked) return; // a newer answer is on its way
      series = Object.fromEntries(stats.map((stat, index) => [stat, found[index]]));
      limited = Boolean(shadow?.refused);
      if (shadow && !limited) series[SHADOW] = shadow;
      read = readPanels(data.panels, series, data.limits);
      if (!view.range) whole = extentOf(read);
      await redraw();
      renewed(place);
    } catch (error) {
      if (ticket === asked) fail(place, say('The chart could not be loaded: {why}.', { why: error.message }), load);
    }
  }

  /** The shadow scale is refused for very many steps: the rest is shown then. */
  async function optional(request) {
    try {
      return await request;
    } catch (error) {
      if (error.status === 422) return { refused: true };
      throw error;
    }
  }

  async function redraw() {
    if (!read || pressed) return;
    const data = current();
    const odd = data.nonfinite.map((stat) => readBins(series[stat]));
    const figure = fillPanels(data.frames.panels, data.panels, read, {
      limits: data.limits, format: data.format.toUpperCase().replaceAll('_', ' '), onset: data.onset, range: view.range, odd, whole,
    });
    timesNote = await view.ticks(figure.layout, place.clientWidth);
    await draw(place, figure, data);
    if (!wired) wire();
    notes(data);
    tools.refresh();
    view.placed();
  }

  function wire() {
    wired = true;
    view.zoomable(place);
    place.addEventListener('pointerdown', () => {
      pressed = true;
    });
    addEventListener('pointerup', () => {
      pressed = false;
    });
  }

  function notes(data) {
    const bins = read[data.panels[0]?.stat] ?? { rows: [], distance: 1 };
    const covers = Math.round(bins.distance);
    const parts = [];
    if (!bins.rows.length) parts.push(say('No statistics of this tensor in these steps.'));
    else if (covers > 1) parts.push(say('Each point covers {n} steps, lowest to highest shown.', { n: stepText(covers) }));
    else parts.push(say('Every step that was sent is shown.'));
    const odd = data.nonfinite.reduce((sum, stat) => sum + readBins(series[stat]).rows.filter((row) => row.high > 0).length, 0);
    if (odd) parts.push(plural('{n} point has NaN or Inf values (purple).', '{n} points have NaN or Inf values (purple).', odd));
    parts.push(shadowWords(data), timesNote);
    if (view.range) parts.push(say('Double click or Esc shows the whole run.'));
    const text = sentences(parts);
    if ($('#panels-note').textContent !== text) $('#panels-note').textContent = text;
    legend(data);
  }

  function shadowWords(data) {
    if (!data.panels.some((panel) => panel.stat === 'scale')) return '';
    if (!data.shadow) return say('The recipe says no rule by which this scale is made, so there is no shadow scale.');
    if (limited) return say('Zoom in to see the shadow scale: it is worked out for at most 400,000 steps.');
    const several = data.several ? say('Where a step had several forward passes the shadow scale is not known: of those only the largest amax is sent.') : '';
    if (!read[SHADOW].rows.length) {
      if (several) return several;
      return data.shadow === 'max'
        ? say('The shadow scale is not known here: it needs the amax of every step of a whole window of {n} passes.', { n: stepText(data.window) })
        : say('The shadow scale is not known here: it needs the amax of every step.');
    }
    const alone = data.reduced ? say('The shadow scale is that of this rank alone: a larger amax of another rank may lower the scale in use.') : '';
    return sentences([several, alone]);
  }

  function legend(data) {
    const host = $('#panels-legend');
    if (!data.panels.some((panel) => panel.stat === 'scale') || host.childElementCount) return;
    const key = (className, text) => {
      const mark = element('i', { className });
      const item = element('span');
      item.append(mark, text);
      return item;
    };
    host.append(key('k-scale', say('scale in use')));
    if (data.shadow) host.append(key('k-shadow', say('shadow scale, from its own amax')));
  }

  /** Exactly what is shown: a row a step, of each panel lowest, highest, last and what was not finite. */
  function table() {
    const data = current();
    const columns = [say('Step')];
    const found = new Map();
    const shown = [...data.panels.map((panel) => [panel.stat, panel.title]), ...(series[SHADOW] ? [[SHADOW, say('Shadow scale')]] : [])];
    shown.forEach(([stat, title], index) => {
      columns.push(say('{what}, lowest', { what: title }), say('{what}, highest', { what: title }), say('{what}, last', { what: title }), say('{what}, NaN', { what: title }), say('{what}, Inf', { what: title }));
      const factor = stat === 'sat' ? (data.limits.max ?? 1) : 1;
      const of = series[stat];
      of.step.forEach((step, at) => {
        const row = found.get(step) ?? [step, ...Array(5 * shown.length).fill(null)];
        const cells = ['min', 'max', 'last'].map((name) => (of[name][at] == null ? null : of[name][at] * factor));
        row.splice(1 + 5 * index, 5, ...cells, of.nan[at], of.inf[at]);
        found.set(step, row);
      });
    });
    return { columns, rows: [...found.values()].sort((a, b) => a[0] - b[0]) };
  }

  const tools = chartTools({
    host: $('#panels-tools'),
    chart: place,
    after: $('#panels-note'),
    title: () => say('Statistics of {tensor} over time', { tensor: current().tensor }),
    run: () => current().name,
    range: () => view.words(),
    table: () => (series ? table() : { columns: [say('Step')], rows: [] }),
  });

  return { load, redraw, steps: () => (read ? (read[current().panels[0]?.stat]?.rows ?? []).map((row) => row.step) : []), extent: () => whole, shown: () => whole && withSpace(whole) };
}
