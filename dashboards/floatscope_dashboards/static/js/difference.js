// Fills the frame of the comparison's chart (difference_figure.py) with the series of GET /api/v1/compare.
import { missingStretches, nonfiniteStretches, readBins } from './bins.js';
import { NARROW_SPACE, numberText, plotlyText } from './core.js';
import { say } from './say.js';

const PAD_SHARE = 0.08;
const RIGHT_SPACE_SHARE = 0.01;
const MIN_SPAN = 1e-9;
const LOW_QUANTILE = 0.01;
const HIGH_QUANTILE = 0.99;
const OUTSIDE_TIMES = 3;
const GAP_FACTOR = 4;

/** A difference with its sign. */
export const signedText = (value) => (value > 0 ? '+' : '') + numberText(Number(value.toPrecision(2))).replace('-', '\u2212');

/**
 * @param {object} frame with "@token" colours
 * @param {object} series difference, band, run, baseline
 * @param {{margin: number, range: [number, number]|null}} options range: the steps that are shown
 */
export function fillDifference(frame, series, { margin, range }) {
  const figure = structuredClone(frame);
  const { layout } = figure;
  const bins = Object.fromEntries(['difference', 'run', 'baseline'].map((name) => [name, readBins(series[name])]));
  const fill = {
    band: () => polygon(series.band),
    raw: () => lineOf(bins.difference),
    mean: () => meanLine(series.band, bins.difference),
    single: () => lonely(bins.difference),
    run: () => lineOf(bins.run),
    baseline: () => lineOf(bins.baseline),
    'run-single': () => lonely(bins.run),
    'baseline-single': () => lonely(bins.baseline),
  };
  for (const trace of figure.data) Object.assign(trace, fill[trace.meta]());
  const steps = range ?? [series.from, series.to + Math.max((series.to - series.from) * RIGHT_SPACE_SHARE, 0.5)];
  layout.xaxis.range = [...steps];
  const outside = differenceRange(layout.yaxis, series, bins.difference, margin);
  lossRange(layout.yaxis2, bins);
  layout.shapes.push(...lines(margin, layout.yaxis.range));
  for (const name of ['run', 'baseline']) {
    for (const [from, to] of nonfiniteStretches(bins[name])) layout.shapes.push(rect(from, to, 'y2 domain', '@nan-band'));
  }
  for (const [from, to] of missingStretches(bins.difference)) layout.shapes.push(rect(from, to, 'y domain', '@gap-band'));
  layout.annotations.push(...labels(margin, layout.yaxis.range, series.band, outside));
  return figure;
}

function runsOf({ rows, distance }, known) {
  const runs = [];
  let run = [];
  rows.forEach((row, index) => {
    const hole = index > 0 && row.step - rows[index - 1].step > GAP_FACTOR * distance;
    if ((hole || !known(row)) && run.length) {
      runs.push(run);
      run = [];
    }
    if (known(row)) run.push(row);
  });
  if (run.length) runs.push(run);
  return runs;
}

const hasMean = (row) => row.mean != null;

function lineOf(bins) {
  const x = [];
  const y = [];
  for (const run of runsOf(bins, hasMean)) {
    x.push(...run.map((row) => row.step), null);
    y.push(...run.map((row) => row.mean), null);
  }
  return { x, y };
}

function lonely(bins) {
  const alone = runsOf(bins, hasMean).filter((run) => run.length === 1);
  return { x: alone.map(([row]) => row.step), y: alone.map(([row]) => row.mean) };
}

/** Means of the windows; the bins themselves where there are too few pairs for a window. */
function meanLine(band, bins) {
  return band.step.length > 1 ? { x: band.step, y: band.mean } : lineOf(bins);
}

function polygon(band) {
  if (band.step.length < 2) return { x: [], y: [] };
  const back = band.step.map((_step, index) => band.step.length - 1 - index);
  return {
    x: [...band.step, ...back.map((index) => band.step[index]), band.step[0]],
    y: [...band.high, ...back.map((index) => band.low[index]), band.high[0]],
  };
}

function quantile(ordered, share) {
  const place = share * (ordered.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, ordered.length - 1);
  return ordered[below] + (ordered[above] - ordered[below]) * (place - below);
}

/** Shows the band, zero and a limit that is near; single bins far outside are counted. */
function differenceRange(axis, { band }, bins, margin) {
  const means = bins.rows.filter(hasMean).map((row) => row.mean).sort((a, b) => a - b);
  const inner = means.length ? [quantile(means, LOW_QUANTILE), quantile(means, HIGH_QUANTILE)] : [0, 0];
  const values = [0, ...band.low, ...band.high, ...inner];
  let low = Math.min(...values);
  let high = Math.max(...values);
  const span = Math.max(high - low, MIN_SPAN);
  if (margin > 0 && margin < high + OUTSIDE_TIMES * span) high = Math.max(high, margin * 1.12);
  if (margin > 0 && -margin > low - span / 2) low = Math.min(low, -margin * 1.12);
  const pad = Math.max(high - low, MIN_SPAN) * PAD_SHARE;
  axis.range = [low - pad, high + pad];
  return means.filter((value) => value < axis.range[0] || value > axis.range[1]);
}

function lossRange(axis, { run, baseline }) {
  const values = [run, baseline].flatMap(({ rows }) => rows.filter(hasMean).map((row) => row.mean)).sort((a, b) => a - b);
  if (!values.length) {
    axis.range = [0, 1];
    return;
  }
  const high = quantile(values, HIGH_QUANTILE);
  const low = values[0];
  const pad = Math.max((high - low) * PAD_SHARE, Math.abs(high) * 1e-3, MIN_SPAN);
  axis.range = [low - pad, high + pad];
}

const rect = (x0, x1, yref, fillcolor) => ({
  type: 'rect', xref: 'x', yref, x0, x1, y0: 0, y1: 1, fillcolor, line: { width: 0 }, layer: 'below',
});

function lines(margin, [low, high]) {
  const across = (y, line) => ({ type: 'line', xref: 'paper', x0: 0, x1: 1, yref: 'y', y0: y, y1: y, line, layer: 'below' });
  const made = [across(0, { color: '@text-3', width: 1.2 })];
  for (const limit of margin > 0 ? [margin, -margin] : []) {
    if (limit <= low || limit >= high) continue;
    made.push(across(limit, { color: limit > 0 ? '@crit' : '@text-3', width: 1.4, dash: '5px,3px' }));
    if (limit > 0) {
      made.push({
        type: 'rect', xref: 'paper', x0: 0, x1: 1, yref: 'y', y0: limit, y1: high, fillcolor: '@crit-band', line: { width: 0 }, layer: 'below',
      });
    }
  }
  return made;
}

function labels(margin, [low, high], band, outside) {
  const right = (y, text, color, more = {}) => ({
    xref: 'paper', x: 1, xanchor: 'right', yref: 'y', y, yanchor: 'bottom', text, showarrow: false, bgcolor: '@surface', opacity: 0.9, font: { size: 12, color }, ...more,
  });
  const made = [];
  const unit = `${NARROW_SPACE}nats`;
  if (margin > 0 && margin > low && margin < high) {
    made.push(right(margin, plotlyText(say('your limit, {limit}', { limit: `+${numberText(margin)}${unit}` })), '@crit', { x: 0, xanchor: 'left' }));
  } else if (margin > 0) {
    made.push(right(1, plotlyText(say('your limit {limit} is above', { limit: `+${numberText(margin)}${unit}` })), '@text-3', { yref: 'y domain', yanchor: 'top' }));
  }
  if (band.step.length > 1) {
    const last = band.mean.at(-1);
    made.push(right(band.low.at(-1), plotlyText(say('{value} now', { value: signedText(last) })), '@s1', { x: 0.99, yanchor: 'top' }));
  }
  if (outside.length) {
    const text = say('{n} bins outside, {low} to {high}', { n: outside.length, low: signedText(outside[0]), high: signedText(outside.at(-1)) });
    made.push(right(0, plotlyText(text, 80), '@text-3', { yref: 'y domain', font: { size: 11, color: '@text-3' } }));
  }
  return made;
}
