// What is asked before an alert is acknowledged, or closed as not the cause. Loaded when first asked.
import { ask } from './dialog.js';
import { plural, say } from './say.js';

const HOUR_MS = 3_600_000;

/** Asks for a note and for how long messages are held back. @returns {Promise<object|null>} body of the PATCH */
export async function askAcknowledge(n) {
  const values = await ask({
    title: plural('Acknowledge {n} alert', 'Acknowledge {n} alerts', n),
    text: say('Nothing more is told unless it gets worse, or recovers.'),
    confirm: say('Acknowledge'),
    fields: [
      { name: 'note', label: say('Note'), type: 'textarea', max: 4000, placeholder: say('What you do about it') },
      {
        name: 'mute',
        label: say('Hold those messages back too'),
        type: 'select',
        options: [
          ['', say('No')],
          ['1', say('For 1 hour')],
          ['4', say('For 4 hours')],
          ['24', say('For 1 day')],
          ['168', say('For 1 week')],
        ],
      },
    ],
  });
  if (!values) return null;
  const body = { action: 'acknowledge', ...(values.note.trim() && { note: values.note }) };
  return values.mute ? { ...body, mute_until: new Date(Date.now() + Number(values.mute) * HOUR_MS).toISOString() } : body;
}

/** Asks why a finding is wrong. @returns {Promise<object|null>} body of the PATCH */
export async function askNotTheCause() {
  const values = await ask({
    title: say('Not the cause'),
    text: say('Closes this alert for good: it does not come back unless it gets more severe. Opening it again takes that back.'),
    confirm: say('Not the cause'),
    fields: [{ name: 'note', label: say('What it was instead'), type: 'textarea', max: 4000 }],
  });
  return values && { action: 'not_the_cause', ...(values.note.trim() && { note: values.note }) };
}
