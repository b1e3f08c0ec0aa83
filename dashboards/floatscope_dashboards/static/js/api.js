// The REST interface as the pages use it. The session cookie authenticates.

/** @returns {Promise<object>} the JSON answer. Throws an Error whose message says what the server said. */
async function get(path, query) {
  const address = new URL(path, location.origin);
  for (const [key, value] of Object.entries(query)) if (value != null) address.searchParams.set(key, String(value));
  const answer = await fetch(address, { headers: { Accept: 'application/json' } });
  if (answer.ok) return answer.json();
  let detail = '';
  try {
    const problem = await answer.json();
    detail = problem.detail ?? problem.title ?? '';
  } catch {
    detail = answer.statusText; // not JSON: the status is all there is
  }
  const error = new Error(`the server answered ${answer.status}${detail ? `: ${detail}` : ''}`);
  error.status = answer.status;
  throw error;
}

const run = (id, what) => `/api/v1/runs/${encodeURIComponent(id)}/${what}`;
const range = (steps) => ({ from: steps && Math.floor(steps[0]), to: steps && Math.ceil(steps[1]) });

/** Scalars as column arrays by name; names the run does not log are absent. */
export async function scalars(id, names, { points, steps }) {
  const answer = await get(run(id, 'scalars'), { names: names.join(','), points, ...range(steps) });
  const found = {};
  for (const [name, columns] of Object.entries(answer.series ?? {})) found[name] = { step: answer.step, ...columns };
  return found;
}

/** One statistic of one tensor as column arrays. */
export const series = (id, tensor, stat, { points, steps }) =>
  get(run(id, 'series'), { tensor, stat, points, ...range(steps) });

/** The heat map payload of one statistic; `log2`: of the logarithm of its values. */
export const heatmap = (id, stat, { columns, steps, log2 }) =>
  get(run(id, 'heatmap'), { stat, columns, log2: log2 || null, ...range(steps) });
