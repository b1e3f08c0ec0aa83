// The heat map of one tensor's values on its page: reads it, draws it, says which steps were sampled.
import { $, $$, stepText, wireNumber } from './core.js';
import { get } from './api.js';
import { chartTools } from './chart_tools.js';
import { fillHistogram } from './histogram_fill.js';
import { draw, fail, renewed } from './plot.js';
import { plural, say } from './say.js';
import { sentences as joined } from './sentences.js';

const MIN_COLUMNS = 60;
const MAX_COLUMNS = 400;
const PIXELS_A_COLUMN = 2;

/** @param {() => object} current the page's data @param {object} view what the reader looks at */
export function histogramView(current, view) {
  const place = $('#values');
  let payload = null;
  let most = 0;
  let asked = 0;
  let wired = false;

  async function load() {
    const data = current();
    const ticket = (asked += 1);
    const columns = Math.min(MAX_COLUMNS, Math.max(MIN_COLUMNS, Math.round(place.clientWidth / PIXELS_A_COLUMN)));
    const query = { tensor: data.tensor, columns, rank: data.rank, from: view.range && Math.floor(view.range[0]), to: view.range && Math.ceil(view.range[1]) };
    try {
      most = columns;
      const found = await get(`/api/v1/runs/${encodeURIComponent(data.run)}/histogram`, query);
      if (ticket !== asked) return; // a newer answer is on its way
      payload = found;
      await redraw();
      renewed(place);
    } catch (error) {
      if (ticket === asked) fail(place, say('The histograms could not be loaded: {why}.', { why: error.message }), load);
    }
  }

  async function redraw() {
    if (!payload) return;
    const data = current();
    const empty = !payload.step.length || (view.after && !payload.scale.some((value) => wireNumber(value) > 0));
    place.classList.toggle('bare', empty);
    $('#values-legend').hidden = empty;
    if (empty) {
      nothing();
      return;
    }
    const format = data.format.toUpperCase().replaceAll('_', ' ');
    const figure = fillHistogram(data.frames.histogram, payload, { after: view.after, limits: data.limits, format, shown: view.shown() });
    await view.ticks(figure.layout, place.clientWidth);
    await draw(place, figure, data);
    if (!wired) {
      wired = true;
      view.zoomable(place);
    }
    note();
    tools.refresh();
    view.placed();
  }

  function nothing() {
    if (window.Plotly && place.classList.contains('js-plotly-plot')) {
      window.Plotly.purge(place);
      place.classList.remove('js-plotly-plot');
    }
    let text = say('No histogram was taken in these steps. The agent takes one of every tensor at each tenth sampled step: a smaller stats_every in floatscope.watch(..., stats_every=50) takes them more often.');
    if (payload.step.length) text = say('The scale of these steps is not known, so values cannot be shown after scaling. Before scaling they can.');
    else if (payload.sampled) text = plural('At {n} of these steps other tensors have a histogram, this one has none.', 'At {n} of these steps other tensors have histograms, this one has none.', payload.sampled);
    fail(place, text);
    $('#values-note').textContent = '';
  }

  function note() {
    const steps = payload.step;
    const parts = [
      plural('Histogram of {n} sampled step', 'Histograms of {n} sampled steps', steps.length),
      steps.length > 1 ? say('from {first} to {last}', { first: stepText(steps[0]), last: stepText(steps.at(-1)) }) : say('at {first}', { first: stepText(steps[0]) }),
    ];
    const sentences = [`${parts.join(', ')}.`];
    if (steps.length >= most && payload.sampled > steps.length) sentences.push(say('Chosen evenly from {n} steps with histograms.', { n: stepText(payload.sampled) }));
    const unknown = view.after ? payload.scale.filter((value) => !(wireNumber(value) > 0)).length : 0;
    if (unknown) sentences.push(plural('{n} is left out: its scale is not known.', '{n} are left out: their scale is not known.', unknown));
    sentences.push(say('Values that are 0, NaN or infinite are not in it.'));
    const text = joined(sentences);
    if ($('#values-note').textContent !== text) $('#values-note').textContent = text;
  }

  /** A row for each sampled step: scale, amax, and the counts of every power of two before scaling. */
  function table() {
    const lows = payload.lowest;
    const low = Math.min(...lows);
    const high = Math.max(...lows.map((value, index) => value + payload.counts[index].length));
    const powers = Array.from({ length: high - low }, (_, index) => low + index);
    const columns = [say('Step'), say('Scale'), say('Amax'), ...powers.map((power) => `2^${power}`)];
    const rows = payload.step.map((step, index) => [
      step, wireNumber(payload.scale[index]), wireNumber(payload.amax[index]), ...powers.map((power) => payload.counts[index][power - lows[index]] ?? 0),
    ]);
    return { columns, rows };
  }

  const tools = chartTools({
    host: $('#values-tools'),
    chart: place,
    after: $('#values-note'),
    title: () => say('All values of {tensor}, before scaling', { tensor: current().tensor }),
    run: () => current().name,
    range: () => view.words(),
    table: () => (payload?.step.length ? table() : { columns: [say('Step')], rows: [] }),
  });

  for (const button of $$('[data-values]')) {
    button.addEventListener('click', () => {
      view.setAfter(button.dataset.values === 'after');
      redraw();
    });
  }

  return { load, redraw };
}
