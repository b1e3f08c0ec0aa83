// The dialog that makes a silence, for the alerts and for the rules page.
//
//   const made = await askSilence({
//     where: [['run:llama-r3', say('Run {name}', { name })], ['project:pretrain', say('Project {name}', { name })]],
//     what: [['cause:plateau', 'Loss has stopped falling'], ['family:data', 'Data']],
//   });
//   if (made) ...   // the silence as POST /api/v1/silences answered; the notice is shown already, with Undo
//
// The first of each list is what is chosen at first; "every project" and "every finding" ('') are added at the end unless
// they are there.
import { get, send } from './api.js';
import { ask } from './dialog.js';
import { notice } from './notice.js';
import { plural, say } from './say.js';
import { localTime } from './times.js';

const HOUR_S = 3600;
const COUNTED = 100; // alerts looked at to say what a silence would hold back
const ALERTING = ['warning', 'critical'];

/** Which alerts a choice covers, as the API names it: {run?, project?, family?, cause?}. */
function covered(values) {
  const found = {};
  for (const choice of [values.where, values.what]) {
    const at = choice.indexOf(':');
    if (at > 0) found[choice.slice(0, at)] = choice.slice(at + 1);
  }
  return found;
}

/** When it ends: a Date, or null for "until somebody ends it". */
function ending(values) {
  if (values.lasts === 'open') return null;
  return values.lasts === 'at' ? new Date(values.ends) : new Date(Date.now() + Number(values.lasts) * 1000);
}

/** What the silence would hold back now, in a sentence. */
async function heldBack(values) {
  const severity = values.critical ? ALERTING.join(',') : 'warning';
  const found = await get('/api/v1/alerts', { ...covered(values), severity, state: 'firing', limit: COUNTED });
  const n = found.items.length;
  if (found.next_cursor) return say('Holds back more than {n} alerts that fire now, and those to come.', { n });
  if (n === 0) return say('No alert that fires now is held back; those to come are.');
  return plural('Holds back {n} alert that fires now, and those to come.', 'Holds back {n} alerts that fire now, and those to come.', n);
}

async function make(values) {
  const scope = covered(values);
  const ends = ending(values);
  if (values.lasts === 'at' && !(ends > new Date())) throw new Error(say('Choose an end that lies in the future.'));
  if (!ends && Object.keys(scope).length === 0) throw new Error(say('A silence of everything needs an end.'));
  const body = { ...scope, critical: values.critical, note: values.note };
  return send('POST', '/api/v1/silences', ends ? { ...body, ends: ends.toISOString() } : body);
}

/**
 * @param {{where: [string, string][], what: [string, string][]}} choices values are "run:ID", "project:NAME",
 *   "family:NAME" or "cause:NAME", with their words
 * @param {() => void} [onChange] called when it was made, and when Undo ended it
 * @returns {Promise<object|null>} the silence; null when the reader closed the dialog
 */
export async function askSilence({ where, what }, onChange = () => {}) {
  const values = await ask({
    title: say('New silence'),
    text: say('Messages about these alerts are held back. The alerts stay on the pages.'),
    confirm: say('Silence'),
    fields: [
      { name: 'where', label: say('Runs'), type: 'select', options: [...where, ['', say('Every project')]] },
      { name: 'what', label: say('Findings'), type: 'select', options: what.some(([value]) => !value) ? what : [...what, ['', say('Every finding')]] },
      {
        name: 'lasts',
        label: say('For how long'),
        type: 'select',
        value: String(4 * HOUR_S),
        options: [
          [String(HOUR_S), say('1 hour')],
          [String(4 * HOUR_S), say('4 hours')],
          [String(24 * HOUR_S), say('1 day')],
          [String(7 * 24 * HOUR_S), say('1 week')],
          ['at', say('Until the time below')],
          ['open', say('Until somebody ends it')],
        ],
      },
      { name: 'ends', label: say('Ends at'), type: 'datetime-local', hint: say('Your own time zone. Counts only with "Until the time below".') },
      { name: 'critical', label: say('Critical alerts too'), type: 'checkbox', hint: say('Otherwise only warnings are held back.') },
      { name: 'note', label: say('Why'), type: 'textarea', max: 4000, placeholder: say('For others who wonder, such as: node 5, fan is being changed') },
    ],
    preview: heldBack,
    send: make,
  });
  if (!values) return null;
  const made = values.answer;
  const text = made.ends ? say('Silenced until {time}', { time: localTime(new Date(made.ends), 'date') }) : say('Silenced until somebody ends it');
  notice(text, {
    undo: async () => {
      await endSilence(made.id);
      onChange();
    },
  });
  onChange();
  return made;
}

/** Ends a silence now: what it held back and still fires is told once. */
export const endSilence = (id) => send('DELETE', `/api/v1/silences/${encodeURIComponent(id)}`);
