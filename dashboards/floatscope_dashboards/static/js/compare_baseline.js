// Makes the run that another is compared with its baseline, and takes that back.
import { get, send } from './api.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';

/** @param {{run: string, baseline: string, baseline_name: string}} pair @param {() => void} onChange */
export async function setBaseline(pair, onChange, { to = pair.baseline, undo } = {}) {
  const address = `/api/v1/runs/${encodeURIComponent(pair.run)}`;
  try {
    const before = (await get(address)).baseline;
    await send('PATCH', address, { baseline: to });
    if (undo) notice(say('The baseline is as it was.'));
    else notice(say('{baseline} is the baseline now; the run is judged anew.', { baseline: pair.baseline_name }), { undo: () => setBaseline(pair, onChange, { to: before, undo: true }) });
    onChange();
  } catch (error) {
    failure(error);
  }
}
