// Fills the loss frame of the page with data. The same as loss_figure.fill_loss; a browser test holds the two equal.
import { numberText, plotlyText, stepText } from './core.js';
import { band, halfLifeSteps, isolated, line, marks, missingStretches, nonfiniteStretches, readBins, smooth, span, wholeSpan, within } from './bins.js';
import { plural, say } from './say.js';

const FEW_STEPS = 6;
const RIGHT_SPACE_SHARE = 0.02;
const MARK_HEIGHT = { nan: 0.04, inf: 0.96 };

/**
 * @param {object} frame the page's frame, with "@token" colours
 * @param {object} series loss, grad_norm, proof, baseline: column arrays; old: a list of those of abandoned segments
 * @param {{onset: number|null, log: boolean, half: number|null, full: boolean, range: [number, number]|null}} options
 *   half: half-life in steps, null for what suits, 0 for none; full: leaves no value out; range: the zoom
 */
export function fillLoss(frame, series, { onset, log = false, half = null, full = false, range = null }) {
  const figure = structuredClone(frame);
  const { layout } = figure;
  const read = {};
  for (const name of ['loss', 'grad_norm', 'proof', 'baseline']) read[name] = readBins(series[name]);
  const old = (series.old ?? []).map(readBins);
  const halfLife = half ?? halfLifeSteps(read.loss);
  for (const trace of figure.data) {
    const [name, part] = trace.meta;
    if (name === 'old') {
      const lines = old.map(line);
      Object.assign(trace, { x: lines.flatMap(({ x }) => x), y: lines.flatMap(({ y }) => y) });
      continue;
    }
    Object.assign(trace, fillTrace(read[name], part));
    if (!halfLife) continue;
    if (part === 'smooth' || name === 'baseline') Object.assign(trace, smooth(read[name], halfLife));
    else if (name === 'loss' && part === 'line') trace.line = { color: '@s1-raw', width: 1 };
  }
  const steps = ['loss', 'grad_norm', 'proof'].flatMap((name) => read[name].rows.map((row) => row.step));
  const first = steps.length ? steps.reduce((a, b) => Math.min(a, b)) : 0;
  const last = steps.length ? steps.reduce((a, b) => Math.max(a, b)) : 1;
  const all = [first, last + Math.max((last - first) * RIGHT_SPACE_SHARE, 1)];
  const shown = range ?? all;
  layout.xaxis.range = [...shown];
  if (shown[1] - shown[0] < FEW_STEPS) layout.xaxis.dtick = 1;
  const seen = (name) => within(read[name], range);
  setRange(layout.yaxis, span([seen('loss'), seen('baseline')], log, !full), log);
  setRange(layout.yaxis2, span([seen('grad_norm')]), false);
  if (layout.yaxis3) setRange(layout.yaxis3, wholeSpan([seen('proof')]), false);
  for (const shape of layout.shapes) if (shape.name === 'after-onset') shape.x1 = Math.max(all[1], shape.x0);
  layout.shapes.push(...stretches(read));
  if (onset != null && shown[0] <= onset && onset <= shown[1]) layout.annotations.push(onsetLabel(onset, shown));
  const outside = full ? null : span([seen('loss')], log);
  if (outside && (outside.above || outside.below)) layout.annotations.push(outsideLabel(outside));
  return figure;
}

function fillTrace(bins, part) {
  if (part === 'smooth') return { x: [], y: [] };
  if (part === 'line') return line(bins);
  if (part === 'band') return band(bins);
  return part === 'single' ? isolated(bins) : marks(bins, part, MARK_HEIGHT[part]);
}

function setRange(axis, found, log) {
  axis.type = log ? 'log' : 'linear';
  if (!found) axis.range = [0, 1];
  else if (log) axis.range = [Math.log10(Math.max(found.low, found.smallest / 1.1)), Math.log10(found.high)];
  else axis.range = [found.low, found.high];
}

function stretches(read) {
  const shapes = [];
  for (const [name, axis] of [['loss', 'y'], ['grad_norm', 'y2']]) {
    for (const [from, to] of nonfiniteStretches(read[name])) {
      shapes.push(rect(from, to, `${axis} domain`, '@nan-band', 'nonfinite'));
    }
  }
  for (const [from, to] of missingStretches(read.loss)) shapes.push(rect(from, to, 'paper', '@gap-band', 'missing'));
  return shapes;
}

const rect = (x0, x1, yref, fillcolor, name) => ({
  type: 'rect', xref: 'x', yref, x0, x1, y0: 0, y1: 1, fillcolor, line: { width: 0 }, layer: 'below', name,
});

function onsetLabel(onset, shown) {
  const right = onset > (shown[0] + shown[1]) / 2;
  return {
    text: `<b>${plotlyText(say('Onset {step}', { step: stepText(onset) }))}</b>`,
    x: onset,
    xref: 'x',
    xanchor: right ? 'right' : 'left',
    xshift: right ? 4 : -4,
    y: 1,
    yref: 'paper',
    yanchor: 'bottom',
    showarrow: false,
    font: { size: 12, color: '@crit' },
  };
}

function outsideLabel(found) {
  return {
    text: plotlyText(outsideWords(found)),
    x: 1,
    xref: 'paper',
    xanchor: 'right',
    y: found.above ? 1 : 0,
    yref: 'y domain',
    yanchor: found.above ? 'top' : 'bottom',
    showarrow: false,
    captureevents: true,
    font: { size: 11, color: '@text-2' },
    name: 'outside',
  };
}

/** How many points are not shown, and how far they go. */
export function outsideWords(found) {
  const above = plural('{n} point above, max {value}', '{n} points above, max {value}', found.above, { value: numberText(found.largest) });
  const below = plural('{n} point below, min {value}', '{n} points below, min {value}', found.below, { value: numberText(found.smallest) });
  if (found.above && found.below) return say('{above}; {below}', { above, below });
  return found.above ? above : below;
}
