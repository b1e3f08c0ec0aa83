// The numbers of the loss chart as rows: exactly what is drawn. Loaded when the reader asks for them.
import { readBins, smooth } from './bins.js';
import { stepText } from './core.js';
import { say } from './say.js';

/** Rows for the table and the CSV: one a bin of the loss and of the other series that are there. */
export function lossTable(read, { proofWords, half, shown }) {
  const parts = [['loss', say('loss')], ['grad_norm', say('gradient norm')], ['proof', proofWords], ['baseline', say('baseline')]];
  const there = parts.filter(([name]) => read[name]?.step?.length);
  const columns = [say('step')];
  const bySteps = new Map();
  const row = (step) => {
    if (!bySteps.has(step)) bySteps.set(step, []);
    return bySteps.get(step);
  };
  for (const [name, word] of there) {
    const series = read[name];
    const at = columns.length - 1;
    const names = { signal: word };
    columns.push(say('{signal} mean', names), say('{signal} min', names), say('{signal} max', names), say('{signal} last', names), say('{signal} NaN', names), say('{signal} Inf', names));
    series.step.forEach((step, index) => {
      if (shown && (step < shown[0] || step > shown[1])) return;
      const cells = row(step);
      const [nan, inf] = [series.nan?.[index] ?? 0, series.inf?.[index] ?? 0];
      const gone = nan ? NaN : inf ? Infinity : null; // a bin whose values all are not finite has no mean
      for (const [offset, key] of ['mean', 'min', 'max', 'last'].entries()) cells[at + offset] = series[key]?.[index] ?? gone;
      cells[at + 4] = nan;
      cells[at + 5] = inf;
    });
    if (name === 'loss' && half) addSmoothed(series, half, columns, row, bySteps);
  }
  const rows = [...bySteps.entries()].sort(([a], [b]) => a - b);
  const width = columns.length - 1;
  return { columns, rows: rows.map(([step, cells]) => [step, ...Array.from({ length: width }, (_, index) => cells[index])]) };
}

function addSmoothed(series, half, columns, row, bySteps) {
  const at = columns.length - 1;
  columns.push(say('loss smoothed over {n} steps', { n: stepText(half) }));
  const { x, y } = smooth(readBins(series), half);
  x.forEach((step, index) => {
    if (step != null && bySteps.has(step)) row(step)[at] = y[index];
  });
}
