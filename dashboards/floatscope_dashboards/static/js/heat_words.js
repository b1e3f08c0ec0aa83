// What the heat map says in words: a cell's value, the steps of a column, the legend.
import { $, NARROW_SPACE, element, numberText, stepText, theme } from './core.js';
import { LEVELS, NONFINITE_CODE } from './cells.js';
import { colorRange } from './heat.js';
import { say } from './say.js';

const MARK_WORD = { 1: 'NaN', 2: 'Inf' };

/** The value of a cell with its unit; NaN, Inf and missing are words of their own. */
export function valueText(grid, stat, code, mark) {
  if (code === NONFINITE_CODE) return MARK_WORD[mark];
  if (code > LEVELS) return say('no data');
  // "|| 0": a tiny negative number is 0, not -0.
  return numberText(Number(grid.valueOf(code).toFixed(stat.decimals)) || 0) + (stat.unit ? NARROW_SPACE + stat.unit : '');
}

/** The steps a column stands for. */
export function spanText(grid, column) {
  const at = grid.columns[column];
  if (at == null) return say('hole in the data');
  const [from, to] = [grid.starts[at], grid.ends[at]];
  if (from === to) return say('step {step}', { step: stepText(from) });
  return say('steps {from} to {to}, worst value', { from: stepText(from), to: stepText(to) });
}

/** Writes what the colours mean. */
export function legend(grid, stat, tokens) {
  const values = tokens[theme()][`ramp-${stat.ramp}`];
  const [low, high] = colorRange(stat, grid);
  const ramp = element('i', { className: 'ramp' });
  ramp.style.background = `linear-gradient(90deg,${values.map(([place, colour]) => `${colour} ${place * 100}%`).join()})`;
  const name = stat.unit ? say('{name}, {unit}:', { name: stat.label, unit: stat.unit }) : say('{name}:', { name: stat.label });
  const end = (value, word, more = '') => element('span', { className: 'num', text: `${word ? `${word} ` : ''}${numberText(value)}${more}` });
  const open = stat.low < stat.high && high !== 100 ? '+' : '';
  const top = element('span', { className: 'num', text: `${numberText(high)}${open}${stat.high_word ? ` ${stat.high_word}` : ''}` });
  const scale = element('span', {}, name, ' ', end(low, stat.low_word), ramp, top);
  const swatches = [['k-nan', 'NaN'], ['k-inf', 'Inf'], ['k-gap', say('no data')]].map(([className, text]) =>
    element('span', {}, element('i', { className }), text),
  );
  $('#heat-legend').replaceChildren(scale, ...swatches, element('span', { className: 'faint', text: say('Each cell shows its worst value') }));
}
