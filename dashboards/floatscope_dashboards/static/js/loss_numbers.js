// The loss chart in words.
import { stepText } from './core.js';
import { readBins, span, within } from './bins.js';
import { outsideWords } from './loss.js';
import { plural, say } from './say.js';
import { sentences } from './sentences.js';

/** What the chart shows, in sentences. @returns {string} */
export function lossWords(read, { half, shown, widthPx, log, missingBaseline }) {
  const bins = readBins(read.loss);
  const { rows } = within(bins, shown);
  if (!rows.length) return read.loss ? say('No loss was logged for these steps.') : say('No loss was logged in this run.');
  const steps = shown ? shown[1] - shown[0] : rows.at(-1).step - rows[0].step;
  const perPixel = Math.round(steps / Math.max(1, widthPx));
  const parts = [];
  if (bins.distance > 1 && perPixel > 1) parts.push(say('1 px = {n} steps, min to max shown.', { n: stepText(perPixel) }));
  else if (bins.distance > 1) parts.push(say('Each point covers {n} steps, min to max shown.', { n: stepText(bins.distance) }));
  else parts.push(say('Every step is shown.'));
  if (half) parts.push(plural('Smoothed with a half-life of {n} step.', 'Smoothed with a half-life of {n} steps.', half));
  const nan = rows.reduce((sum, row) => sum + row.nan, 0);
  const inf = rows.reduce((sum, row) => sum + row.inf, 0);
  if (nan) parts.push(plural('{n} NaN.', '{n} NaN.', nan));
  if (inf) parts.push(plural('{n} Inf.', '{n} Inf.', inf));
  if (rows.every((row) => row.mean == null)) parts.push(say('No value is finite, so there is no curve.'));
  const below = log ? rows.filter((row) => row.low != null && row.low <= 0).length : 0;
  if (below) parts.push(plural('{n} value at or below 0 has no place on a logarithmic axis.', '{n} values at or below 0 have no place on a logarithmic axis.', below));
  if (missingBaseline) parts.push(say('The baseline has no loss for these steps.'));
  return sentences(parts);
}

/** How many points lie outside the vertical range, in words; '' when none does. */
export function outsideText(read, { log, shown }) {
  const found = span([within(readBins(read.loss), shown)], log);
  return found && (found.above || found.below) ? outsideWords(found) : '';
}
