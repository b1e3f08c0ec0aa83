// An axis of powers that also has a row for 0: positive values stand at their logarithm, 0 one row below the lowest.
import { numberText } from './core.js';

const MOST_TICKS = 6;
const LONG_FROM = 10; // powers of two from here on are longer as numbers than there is room beside the axis
const FEW_POWERS = 2.5;
const LOW_QUANTILE = 0.01;
const HIGH_QUANTILE = 0.98;
const OUTLIER_SPANS = 1.5;

const BASES = { log2: [Math.log2, 2], log10: [Math.log10, 10] };

const powerText = (base, power) => `${base}<sup>${String(power).replace('-', '\u2212')}</sup>`;

/**
 * Where values stand, and how the axis looks. Values that span few powers of two stand where they are.
 * @param {'linear'|'log2'|'log10'} kind
 * @param {number[]} values finite ones, of every curve of the panel
 * @param {{always?: number[], numbers?: boolean, most?: number}} [options] always: values that must be in view. numbers: ticks are
 *   numbers, not powers, if all of these are short. most: ticks that there is room for
 * @returns {{place: (value: number) => number|null, axis: object, below: number, smallest: number}} below: numbers that
 *   are too far below the rest to be in view, of which smallest is the lowest
 */
export function valueAxis(kind, values, { always = [], numbers = false, most: mostTicks = MOST_TICKS } = {}) {
  const all = [...values, ...always];
  const positive = all.filter((value) => value > 0);
  const [log, base] = BASES[kind] ?? [];
  if (!log || !positive.length) return linear(kind, all);
  const powers = positive.map(log);
  const { low, below } = kind === 'log2' ? lowest(powers) : { low: least(powers), below: 0 };
  const high = most(powers);
  const zero = all.some((value) => value === 0);
  if (kind === 'log2' && high - low < FEW_POWERS && !zero) return linear(kind, all);
  const floor = Math.floor(low) - 1;
  const stride = Math.max(1, Math.ceil((high - low) / mostTicks));
  const tickvals = [];
  for (let power = Math.ceil(low / stride) * stride; power <= (high - low < 1 ? Math.ceil(high) : high); power += stride) tickvals.push(power);
  if (!tickvals.length) tickvals.push(Math.round(low));
  const plain = base === 10 || (numbers && tickvals.every((power) => Math.abs(power) < LONG_FROM));
  const ticktext = tickvals.map((power) => (plain ? numberText(base ** power) : powerText(base, power)));
  if (zero) {
    tickvals.unshift(floor);
    ticktext.unshift('0');
  }
  const pad = Math.max(0.15, (high - low) * 0.06);
  const near = high - low < 1; // then the next power above is in view, so that the axis has a tick
  return {
    place: (value) => (value > 0 ? log(value) : value === 0 ? floor : null),
    axis: { type: 'linear', tickmode: 'array', tickvals, ticktext, range: [(zero ? floor : low) - pad, (near ? Math.max(high, Math.ceil(high)) : high) + pad] },
    below,
    smallest: least(positive),
  };
}

/** Where the axis begins: a few values far below the rest, as those of the first steps, stay out of view. */
function lowest(powers) {
  const ordered = [...powers].sort((a, b) => a - b);
  const at = (share) => ordered[Math.round(share * (ordered.length - 1))];
  const [inner, outer] = [at(LOW_QUANTILE), at(HIGH_QUANTILE)];
  const span = outer - inner;
  if (inner - ordered[0] <= Math.max(1, OUTLIER_SPANS * span)) return { low: ordered[0], below: 0 };
  const low = inner - Math.max(0.5, span / 4);
  return { low, below: ordered.filter((power) => power < low).length };
}

function linear(kind, all) {
  const low = all.length ? least(all) : 0;
  const high = all.length ? most(all) : 1;
  const from = kind === 'log2' || kind === 'log10' ? low : Math.min(0, low);
  const pad = (high - from) * 0.08 || Math.abs(high) * 0.08 || 1;
  const bottom = from >= 0 && from - pad < 0 ? -pad / 3 : from - pad;
  return {
    place: (value) => value,
    axis: { type: 'linear', tickmode: 'auto', nticks: 4, tickvals: null, ticktext: null, range: [bottom, high + pad] },
    below: 0,
    smallest: low,
  };
}

const least = (values) => values.reduce((a, b) => Math.min(a, b));
const most = (values) => values.reduce((a, b) => Math.max(a, b));
