// Fills the heat map of one tensor's values with data: shares per power of two, and the limits of the format as lines.
import { numberText, stepText, wireNumber } from './core.js';
import { say } from './say.js';

const MOST_ROWS = 240;
const FINEST = 4; // rows of a power of two, so that values moved by a scale between two powers stand where they belong
const GAP_FACTOR = 4;
const EVERY = [1, 2, 4, 8, 16];
const MOST_TICKS = 9;

/** log2 of the scale of each column; null where values cannot be moved by it. */
const shifts = (payload, after) => payload.scale.map((value) => {
  if (!after) return 0;
  const scale = wireNumber(value);
  return scale > 0 && Number.isFinite(scale) ? Math.log2(scale) : null;
});

/** Left and right end of each column, with holes where sampling paused. */
export function columnEdges(steps) {
  const gaps = steps.slice(1).map((step, index) => step - steps[index]);
  const around = (index) => Math.max(gaps[index - 1] ?? 0, gaps[index + 1] ?? 0) || gaps[index]; // neighbours of a gap
  const edges = [steps[0] - (gaps[0] ?? 1) / 2];
  const owner = []; // of each cell between two edges: the column, or null for a hole
  steps.forEach((step, index) => {
    owner.push(index);
    const gap = gaps[index];
    if (gap == null) edges.push(step + (gaps.at(-1) ?? 1) / 2);
    else if (gap > GAP_FACTOR * around(index)) {
      const half = around(index) / 2;
      edges.push(step + half, steps[index + 1] - half);
      owner.push(null);
    } else edges.push(step + gap / 2);
  });
  return { edges, owner };
}

/**
 * @param {object} frame @param {object} payload of the REST interface, with at least one step
 * @param {{after: boolean, limits: object, format: string, shown: [number, number]|null}} options
 */
export function fillHistogram(frame, payload, { after, limits = {}, format = '', shown = null }) {
  const figure = structuredClone(frame);
  const shift = shifts(payload, after);
  const usable = shift.flatMap((value, index) => (value == null ? [] : [index]));
  const lows = usable.map((index) => payload.lowest[index] + shift[index]);
  const highs = usable.map((index) => payload.lowest[index] + payload.counts[index].length + shift[index]);
  const ends = after && limits.max ? [Math.log2(limits.min_subnormal) - 1, Math.log2(limits.max) + 1] : [];
  const low = Math.floor(Math.min(...lows, ...ends)) - 1;
  const high = Math.ceil(Math.max(...highs, ...ends)) + 1;
  const per = Math.max(1, Math.min(FINEST, Math.floor(MOST_ROWS / (high - low))));
  const { edges, owner } = columnEdges(payload.step);
  const count = (high - low) * per;
  const z = Array.from({ length: count }, () => new Array(owner.length).fill(null));
  const text = Array.from({ length: count }, () => new Array(owner.length).fill(''));
  owner.forEach((index, column) => {
    if (index == null || shift[index] == null) return;
    const counts = payload.counts[index];
    const total = counts.reduce((sum, value) => sum + value, 0);
    counts.forEach((value, place) => {
      if (!value) return;
      const exponent = payload.lowest[index] + place;
      const first = Math.round((exponent + shift[index] - low) * per);
      const share = value / total;
      const words = cellWords(payload.step[index], exponent + shift[index], share, value);
      for (let row = Math.max(0, first); row < Math.min(count, first + per); row += 1) {
        z[row][column] = Math.log10(share);
        text[row][column] = words;
      }
    });
  });
  const { layout } = figure;
  const rows = Array.from({ length: count + 1 }, (_, row) => low + row / per);
  const lines = limitLines(payload, shift, edges, { after, limits });
  for (const trace of figure.data) {
    if (trace.meta === 'cells') Object.assign(trace, { x: edges, y: rows, z, text });
    else Object.assign(trace, lines[trace.meta] ?? { x: [], y: [], customdata: [] });
  }
  layout.yaxis.range = [low, high];
  const stride = EVERY.find((step) => (high - low) / step <= MOST_TICKS) ?? 32;
  layout.yaxis.tickvals = [];
  for (let power = Math.ceil(low / stride) * stride; power <= high; power += stride) layout.yaxis.tickvals.push(power);
  layout.yaxis.tickmode = 'array';
  layout.yaxis.ticktext = layout.yaxis.tickvals.map((power) => `2<sup>${String(power).replace('-', '\u2212')}</sup>`);
  layout.xaxis.range = [...(shown ?? [edges[0], edges.at(-1)])];
  labels(layout, lines, { after, limits, format });
  return figure;
}

function cellWords(step, exponent, share, count) {
  const power = numberText(Math.round(exponent * 100) / 100);
  return say('step {step}, from 2^{power}: {share} % of values ({count})', {
    step: stepText(step), power, share: numberText(100 * share), count: stepText(count),
  });
}

/** The lines over the map, by name of trace. */
function limitLines(payload, shift, edges, { after, limits }) {
  const found = {};
  const amax = payload.amax.map(wireNumber);
  const line = (values) => ({
    x: payload.step,
    y: values.map((value) => (value > 0 && Number.isFinite(value) ? Math.log2(value) : null)),
    customdata: values.map((value) => numberText(value)),
  });
  found.amax = line(amax.map((value, index) => (value == null || shift[index] == null ? null : value * 2 ** shift[index])));
  const scale = payload.scale.map(wireNumber);
  for (const [name, limit] of Object.entries(limits)) {
    if (after) found[name] = { x: [edges[0], edges.at(-1)], y: [Math.log2(limit), Math.log2(limit)], customdata: [numberText(limit), numberText(limit)] };
    else found[name] = line(scale.map((value) => (value > 0 && Number.isFinite(value) ? limit / value : null)));
  }
  return found;
}

function labels(layout, lines, { after, limits, format }) {
  if (!limits.max) return;
  const power = (value) => `2<sup>${String(Math.round(Math.log2(value))).replace('-', '\u2212')}</sup>`;
  const texts = after
    ? {
        max: [say('{format} max {value}, clips above', { format, value: numberText(limits.max) }), '@crit', 'bottom'],
        min_normal: [say('smallest normal {value}', { value: power(limits.min_normal) }), '@text-2', 'bottom'],
        min_subnormal: [say('smallest subnormal {value}, becomes 0 below half of it', { value: power(limits.min_subnormal) }), '@text-2', 'top'],
      }
    : {
        max: [say('{format} max at this scale, clips above', { format }), '@crit', 'bottom'],
        min_normal: [say('smallest normal at this scale'), '@text-2', 'bottom'],
        min_subnormal: [say('smallest subnormal at this scale'), '@text-2', 'top'],
      };
  for (const [name, [text, color, yanchor]] of Object.entries(texts)) {
    const y = lines[name]?.y.find((value) => value != null);
    if (y == null) continue;
    layout.annotations.push({ text, xref: 'paper', x: 0.01, xanchor: 'left', y, yref: 'y', yanchor, showarrow: false, font: { size: 11, color }, bgcolor: '@surface', opacity: 0.86, name });
  }
}
