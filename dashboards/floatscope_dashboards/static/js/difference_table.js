// The numbers of the comparison's chart, a line a bin; steps of one run only have the other's fields empty.
import { say } from './say.js';

const cell = (columns, name, index) => columns[name][index];

/** @param {object|null} series of GET /api/v1/compare; null before it is there */
export function differenceTable(series) {
  if (!series) return { columns: [say('Step')], rows: [] };
  const at = new Map();
  for (const name of ['difference', 'run', 'baseline']) {
    series[name].step.forEach((step, index) => {
      const row = at.get(step) ?? {};
      row[name] = index;
      at.set(step, row);
    });
  }
  const of = (name, key) => (row) => (row[name] == null ? null : cell(series[name], key, row[name]));
  const columns = [
    [say('Pairs'), of('difference', 'count')],
    [say('Difference, mean'), of('difference', 'mean')],
    [say('Difference, lowest'), of('difference', 'min')],
    [say('Difference, highest'), of('difference', 'max')],
    [say('Run, mean'), of('run', 'mean')],
    [say('Run, NaN'), of('run', 'nan')],
    [say('Run, Inf'), of('run', 'inf')],
    [say('Baseline, mean'), of('baseline', 'mean')],
    [say('Baseline, NaN'), of('baseline', 'nan')],
    [say('Baseline, Inf'), of('baseline', 'inf')],
  ];
  const rows = [...at].sort(([a], [b]) => a - b).map(([step, row]) => [step, ...columns.map(([, read]) => read(row))]);
  return { columns: [say('Step'), ...columns.map(([text]) => text)], rows };
}
