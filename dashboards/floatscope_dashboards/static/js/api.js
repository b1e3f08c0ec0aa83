// The REST interface as the pages use it. The session cookie authenticates. Where it has ended, the strip on the page says
// so, whichever request found it out.
import { say } from './say.js';
import { signedIn, signedOut } from './strips.js';

/** @returns {Promise<object>} the JSON answer. Throws an Error whose message says what the server said: a clause that can
 *   stand after a colon. @param {{signal?: AbortSignal}} [options] */
export async function get(path, query = {}, { signal } = {}) {
  const address = new URL(path, location.origin);
  for (const [key, value] of Object.entries(query)) if (value != null) address.searchParams.set(key, String(value));
  return answered(await asked(address, { headers: { Accept: 'application/json' }, signal }));
}

/** Changes something. @param {'POST'|'PUT'|'PATCH'|'DELETE'} method @param {object} [body] sent as JSON */
export async function send(method, path, body) {
  const headers = { Accept: 'application/json', ...(body && { 'Content-Type': 'application/json' }) };
  return answered(await asked(new URL(path, location.origin), { method, headers, body: body && JSON.stringify(body) }));
}

async function asked(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error(say('the server cannot be reached'));
  }
}

async function answered(answer) {
  if (answer.status === 401) signedOut();
  else if (answer.ok) signedIn();
  if (answer.status === 204) return null;
  if (answer.ok) return answer.json();
  let detail = '';
  let problem = {};
  try {
    problem = await answer.json();
    detail = problem.detail ?? problem.title ?? '';
  } catch {
    detail = answer.statusText; // not JSON: the status is all there is
  }
  const { status } = answer;
  const error = new Error(detail ? say('the server answered {status}: {detail}', { status, detail }) : say('the server answered {status}', { status }));
  Object.assign(error, { status, problem, field: problem.field }); // field: which part of the request was wrong
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
export const heatmap = (id, stat, { columns, steps, log2, segment }) =>
  get(run(id, 'heatmap'), { stat, columns, log2: log2 || null, segment, ...range(steps) });

/** The worst value of a scalar by rank and bin of steps. */
export const rankmap = (id, name, { columns, steps }) => get(run(id, 'rankmap'), { name, columns, ...range(steps) });
