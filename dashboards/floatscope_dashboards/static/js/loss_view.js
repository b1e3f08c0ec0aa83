// The loss chart on the run page: reads what the screen can show, draws it, lets the reader zoom, and follows the run
// only while the newest step is in view. A tick never moves the reader's zoom.
import { $, announce, element, numberText, stepText } from './core.js';
import { scalars, series } from './api.js';
import { halfLifeBins, readBins } from './bins.js';
import { fillLoss } from './loss.js';
import { draw, fail } from './plot.js';

const MIN_POINTS = 200;
const MAX_POINTS = 900;
const ZOOM_SETTLE_MS = 150;
const TABLE_ROWS = 200;
const AROUND_SHARE = 0.08;
const AROUND_MIN_STEPS = 24;

/**
 * @param {() => object} current the page's data, which changes when the server's HTML is read again
 * @param {(steps: [number, number]|null) => void} onRange called when the reader changes the steps shown
 */
export function lossView(current, onRange) {
  const place = $('#loss');
  let read = null;
  let range = null;
  let pressed = false;
  let asked = 0;
  let settle = 0;
  let wired = false;

  async function load() {
    const data = current();
    const ticket = (asked += 1);
    const points = Math.min(MAX_POINTS, Math.max(MIN_POINTS, place.clientWidth));
    const window = { points, steps: range };
    try {
      const [own, proof, baseline] = await Promise.all([
        scalars(data.run, ['loss', 'grad_norm'], window),
        data.proof ? optional(series(data.run, data.proof.tensor, data.proof.stat, window)) : {},
        data.baseline ? optional(scalars(data.baseline, ['loss'], { points, steps: range ?? extent(data) })) : {},
      ]);
      if (ticket !== asked) return; // a newer answer is on its way
      read = { ...own, proof, baseline: baseline.loss };
      await redraw();
    } catch (error) {
      if (ticket === asked) fail(place, `The loss could not be loaded: ${error.message}. It is tried again on the next step.`);
    }
  }

  /** What may be missing without being an error: the chart then has one curve less. */
  async function optional(request) {
    try {
      return await request;
    } catch (error) {
      if (error.status === 404 || error.status === 422) return {};
      throw error;
    }
  }

  const extent = (data) => (data.first == null ? null : [data.first, data.last]);

  async function redraw() {
    if (!read || pressed) return;
    const data = current();
    const figure = fillLoss(data.frames.loss, read, { onset: data.onset, log: $('#log').checked, smooth: $('#smooth').checked, range });
    place.classList.toggle('three-panels', data.proof != null);
    await draw(place, figure, data);
    if (!wired) wire();
    notes(data);
  }

  function wire() {
    wired = true;
    place.on('plotly_relayout', (change) => {
      const from = change['xaxis.range[0]'];
      const to = change['xaxis.range[1]'];
      if (from == null || to == null) return;
      clearTimeout(settle);
      settle = setTimeout(zoom, ZOOM_SETTLE_MS, [Number(from), Number(to)]);
    });
    place.on('plotly_doubleclick', () => zoom(null));
    place.addEventListener('pointerdown', () => {
      pressed = true;
    });
    addEventListener('pointerup', () => {
      pressed = false;
    });
  }

  function zoom(steps) {
    clearTimeout(settle);
    settle = 0;
    range = steps;
    onRange(steps);
    buttons();
    return load();
  }

  function buttons() {
    const data = current();
    const around = range != null && data.onset != null && String(range) === String(aroundOnset(data));
    $('#whole').setAttribute('aria-pressed', String(range == null));
    $('#around').setAttribute('aria-pressed', String(around));
    $('#around').hidden = data.onset == null;
    $('#whole').hidden = data.onset == null && range == null;
    const newest = $('#newest');
    const behind = range != null && data.last != null && data.last > range[1];
    newest.hidden = !behind;
    if (behind) newest.textContent = `Newest step ${stepText(data.last)}`;
  }

  function aroundOnset(data) {
    const last = data.last ?? data.onset;
    const half = Math.max(AROUND_MIN_STEPS, Math.round((last - (data.first ?? 0)) * AROUND_SHARE));
    return [data.onset - half, data.onset + half];
  }

  function notes(data) {
    const bins = readBins(read.loss);
    const covers = Math.round(bins.distance);
    const nan = bins.rows.reduce((sum, row) => sum + row.nan, 0);
    const inf = bins.rows.reduce((sum, row) => sum + row.inf, 0);
    const halfLife = $('#smooth').checked ? halfLifeBins(bins) : null;
    const parts = [covers > 1 ? `Each point covers ${stepText(covers)} steps, lowest to highest shown.` : 'Every step is shown.'];
    if (halfLife) parts.push(`Smoothed with a half-life of ${stepText(halfLife * bins.distance)} steps.`);
    if (nan) parts.push(`${stepText(nan)} NaN.`);
    if (inf) parts.push(`${stepText(inf)} Inf.`);
    if (data.baseline && !read.baseline) parts.push('The baseline has no loss for these steps.');
    if (range) parts.push('Double click or Esc shows the whole run.');
    const text = bins.rows.length ? parts.join(' ') : 'No loss was logged for these steps.';
    if ($('#loss-note').textContent !== text) $('#loss-note').textContent = text;
    buttons();
    if ($('#loss-table').open) table();
  }

  function table() {
    const { rows } = readBins(read?.loss);
    const head = element('tr');
    for (const text of ['Step', 'Mean', 'Lowest', 'Highest', 'NaN', 'Inf']) head.append(element('th', { text }));
    const made = element('table', {}, element('thead', {}, head));
    for (const row of rows.slice(-TABLE_ROWS)) {
      const line = element('tr');
      const texts = [stepText(row.step), numberText(row.mean), numberText(row.low), numberText(row.high), row.nan, row.inf];
      for (const text of texts) line.append(element('td', { text: String(text) }));
      made.append(line);
    }
    $('#loss-table .scrollx').replaceChildren(made);
  }

  $('#loss-table').addEventListener('toggle', () => $('#loss-table').open && table());
  $('#log').addEventListener('change', redraw);
  $('#smooth').addEventListener('change', redraw);
  $('#whole').addEventListener('click', () => zoom(null));
  $('#newest').addEventListener('click', () => zoom(null));
  $('#around').addEventListener('click', () => {
    announce('Showing the steps around the onset.');
    zoom(aroundOnset(current()));
  });

  return {
    load,
    redraw,
    zoom,
    buttons,
    showOnset: () => current().onset != null && zoom(aroundOnset(current())),
    /** Back to the whole run, also from a zoom that has not settled yet. */
    reset: () => (range != null || settle) && zoom(null),
    /** Whether new steps would be seen: the whole run is in view. */
    follows: () => range == null,
  };
}
