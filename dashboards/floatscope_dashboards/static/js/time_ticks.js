// Texts of the ticks of an axis of steps when it reads in time: positions stay steps, the server says the times.
import { get } from './api.js';
import { language, say } from './say.js';
import { inUtc } from './times.js';

const PIXELS_A_TICK = 110;
const FEWEST = 3;
const MOST = 8;

/**
 * @param {() => object} current the page's data
 * @returns {(layout: object, kind: 'step'|'time', width: number) => Promise<string>} puts the texts on the layout's
 *   xaxis; the answer says why there are none, "" if all is well
 */
export function timeTicks(current) {
  const known = new Map();
  return async (layout, kind, width) => {
    const axis = layout.xaxis;
    if (kind !== 'time') return '';
    const data = current();
    const [from, to] = axis.range;
    const zone = inUtc() ? 'UTC' : Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';
    const count = Math.min(MOST, Math.max(FEWEST, Math.floor(width / PIXELS_A_TICK)));
    const query = { axis: kind, from: Math.max(0, Math.floor(from)), to: Math.ceil(to), count, zone, lang: language };
    const key = JSON.stringify([query, data.last]);
    if (!known.has(key)) {
      known.clear();
      known.set(key, get(`/api/v1/runs/${encodeURIComponent(data.run)}/ticks`, query));
    }
    let found;
    try {
      found = await known.get(key);
    } catch (error) {
      known.clear();
      return say('The times could not be loaded: {why}.', { why: error.message });
    }
    if (!found.ticks.length) return found.why ?? '';
    axis.tickmode = 'array';
    axis.tickvals = found.ticks.map(({ step }) => step);
    axis.ticktext = found.ticks.map(({ text }) => text);
    axis.title = { ...axis.title, text: found.title };
    return '';
  };
}
