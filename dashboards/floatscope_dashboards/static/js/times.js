// Times as the reader's clock shows them, or in UTC if the reader chose that in the settings; UTC stays on hover. The
// server writes them in UTC, as `when` in pages.py.
import { chosen } from './choices.js';
import { $$ } from './core.js';
import { language } from './say.js';

const SHAPES = {
  time: { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' },
  date: { year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', hourCycle: 'h23' },
  day: { year: 'numeric', month: 'short', day: 'numeric' },
};

/** Whether the reader wants all times in UTC. */
export const inUtc = () => chosen('times') === 'utc';

/** A time in the reader's zone, or in UTC and saying so. @param {Date} moment @param {'time'|'date'|'day'} [shape] */
export function localTime(moment, shape = 'time') {
  const utc = inUtc();
  const text = new Intl.DateTimeFormat(language, { ...SHAPES[shape], ...(utc && { timeZone: 'UTC' }) }).format(moment);
  return utc && shape !== 'day' ? `${text} UTC` : text;
}

/** Writes every `<time data-when>` in `root` in the reader's zone. Call it again for what is put in place later. */
export function localTimes(root = document) {
  for (const item of $$('time[data-when]', root)) {
    const moment = new Date(item.dateTime);
    if (!Number.isNaN(moment.getTime())) item.textContent = localTime(moment, item.dataset.when);
  }
}
