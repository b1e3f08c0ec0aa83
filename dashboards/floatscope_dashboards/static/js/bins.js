// What a chart draws from one reduced series. The same as bins.py; a browser test holds the two equal.

const GAP_FACTOR = 4;
const MAX_STRETCHES = 40;
const OUTLIER_SPANS = 1.5;
const LOW_QUANTILE = 0.01;
const HIGH_QUANTILE = 0.98;
const PAD_SHARE = 0.06;
const SMOOTH_SHARE = 0.012;
const SMOOTH_FROM_BINS = 40;

const finite = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : null);
const whole = (value) => (Number.isInteger(value) ? value : 0);

/** Column arrays of the REST interface as bins, steps ascending. */
export function readBins(columns) {
  const at = (name, index) => columns?.[name]?.[index];
  const rows = [];
  (columns?.step ?? []).forEach((step, index) => {
    if (!Number.isInteger(step)) return;
    const mean = finite(at('mean', index));
    rows.push({
      step,
      mean,
      low: finite(at('min', index)) ?? mean,
      high: finite(at('max', index)) ?? mean,
      nan: whole(at('nan', index)),
      inf: whole(at('inf', index)),
    });
  });
  rows.sort((a, b) => a.step - b.step);
  const gaps = rows.slice(1).map((row, index) => row.step - rows[index].step);
  gaps.sort((a, b) => a - b);
  return { rows, distance: gaps.length ? gaps[Math.floor(gaps.length / 2)] : 1 };
}

/** The bins inside the steps shown; all without a range. */
export const within = (bins, shown) =>
  (shown ? { ...bins, rows: bins.rows.filter((row) => row.step >= shown[0] && row.step <= shown[1]) } : bins);

const isHole = ({ rows, distance }, index) => rows[index].step - rows[index - 1].step > GAP_FACTOR * distance;

function finiteRuns(bins) {
  const runs = [];
  let start = null;
  for (let index = 0; index <= bins.rows.length; index += 1) {
    const alive = index < bins.rows.length && bins.rows[index].mean != null;
    if (start != null && (!alive || isHole(bins, index))) {
      runs.push(bins.rows.slice(start, index));
      start = null;
    }
    if (alive && start == null) start = index;
  }
  return runs;
}

/** x and y of the line, null between runs so that no gap is bridged. */
export function line(bins) {
  const x = [];
  const y = [];
  for (const run of finiteRuns(bins)) {
    x.push(...run.map((row) => row.step), null);
    y.push(...run.map((row) => row.mean), null);
  }
  return { x, y };
}

/** Half-life of the smoothed line in steps that suits what is shown; 0 when there are too few bins to smooth. */
export const halfLifeSteps = ({ rows, distance }) =>
  (rows.length < SMOOTH_FROM_BINS ? 0 : roundNumber(Math.max(2, rows.length * SMOOTH_SHARE) * distance));

/** The least of 1, 2, 5, 10, 20, ... that is not below `value`. */
export function roundNumber(value) {
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) if (digit * power >= value) return digit * power;
  }
}

/** The exponential average of the means, half-life in steps: debiased, and begun anew after every gap. */
export function smooth(bins, halfLife) {
  const x = [];
  const y = [];
  for (const run of finiteRuns(bins)) {
    let total = 0;
    let weight = 0;
    run.forEach((row, index) => {
      const apart = index ? row.step - run[index - 1].step : bins.distance;
      const keep = 0.5 ** (apart / halfLife);
      total = keep * total + (1 - keep) * row.mean;
      weight = keep * weight + (1 - keep);
      x.push(row.step);
      y.push(total / weight);
    });
    x.push(null);
    y.push(null);
  }
  return { x, y };
}

/** The vertical range that leaves nothing out; null without a value. */
export function wholeSpan(many) {
  const values = many.flatMap((bins) => bins.rows.flatMap((row) => [row.low, row.high])).filter((value) => value != null);
  if (!values.length) return null;
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  const pad = (high - low) * PAD_SHARE || Math.abs(high) * PAD_SHARE || 1;
  return { low: low - pad, high: high + pad, above: 0, below: 0, largest: high, smallest: low };
}

/** One closed polygon per finite run: fill to the next trace draws a wrong one across a gap. */
export function band(bins) {
  const x = [];
  const y = [];
  for (const run of finiteRuns(bins)) {
    if (run.length < 2) continue;
    const back = [...run].reverse();
    x.push(...run.map((row) => row.step), ...back.map((row) => row.step), run[0].step, null);
    y.push(...run.map((row) => row.high), ...back.map((row) => row.low), run[0].high, null);
  }
  return { x, y };
}

/** Points without a finite neighbour: a line would not show them. */
export function isolated(bins) {
  const alone = finiteRuns(bins).filter((run) => run.length === 1);
  return { x: alone.map(([row]) => row.step), y: alone.map(([row]) => row.mean) };
}

/** Bins that hold `kind` ("nan" or "inf"), at height `y`, with their counts. */
export function marks(bins, kind, y) {
  const found = bins.rows.filter((row) => row[kind]);
  return { x: found.map((row) => row.step), y: found.map(() => y), customdata: found.map((row) => row[kind]) };
}

/** From and to of neighbouring bins that hold NaN or Inf. */
export function nonfiniteStretches({ rows, distance }) {
  const half = distance / 2;
  const stretches = [];
  for (const row of rows) {
    if (!row.nan && !row.inf) continue;
    const last = stretches.at(-1);
    if (last && row.step - half <= last[1] + distance / 4) last[1] = row.step + half;
    else stretches.push([row.step - half, row.step + half]);
  }
  return stretches.slice(0, MAX_STRETCHES);
}

/** From and to of the holes between bins. */
export function missingStretches(bins) {
  const holes = [];
  for (let index = 1; index < bins.rows.length; index += 1) {
    if (isHole(bins, index)) holes.push([bins.rows[index - 1].step, bins.rows[index].step]);
  }
  return holes.slice(0, MAX_STRETCHES);
}

function quantile(ordered, share) {
  const place = share * (ordered.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, ordered.length - 1);
  return ordered[below] + (ordered[above] - ordered[below]) * (place - below);
}

/** The vertical range that keeps the curves readable, and what lies outside; null without a value. */
export function span(many, positive = false, robust = true) {
  const all = many.flatMap((bins) => bins.rows.flatMap((row) => [row.low, row.high]));
  const values = all.filter((value) => value != null && (!positive || value > 0)).sort((a, b) => a - b);
  if (!values.length) return null;
  let low = values[0];
  let high = values.at(-1);
  const innerLow = quantile(values, LOW_QUANTILE);
  const innerHigh = quantile(values, HIGH_QUANTILE);
  const middle = innerHigh - innerLow;
  if (robust && middle > 0 && high - innerHigh > OUTLIER_SPANS * middle) high = innerHigh + middle / 4;
  if (robust && middle > 0 && innerLow - low > OUTLIER_SPANS * middle) low = innerLow - middle / 4;
  const pad = (high - low) * PAD_SHARE || Math.abs(high) * PAD_SHARE || 1;
  const count = (test) => many.reduce((sum, bins) => sum + bins.rows.filter(test).length, 0);
  return {
    low: low - pad,
    high: high + pad,
    above: count((row) => row.high != null && row.high > high + pad),
    below: count((row) => row.low != null && row.low < low - pad),
    largest: values.at(-1),
    smallest: values[0],
  };
}
