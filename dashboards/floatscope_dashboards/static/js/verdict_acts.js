// What a reader does about a finding, one function a button of the verdict. Loaded with the first click.
import { each, takeBack } from './alerts_actions.js';
import { get, send } from './api.js';
import { ask } from './dialog.js';
import { notice } from './notice.js';
import { say } from './say.js';

const HOUR_MS = 3_600_000;
const NOTE_CHARS = 4000;
const SILENCE_HOURS = 2;
const OFFERED = 100;

const runPath = (id) => `/api/v1/runs/${encodeURIComponent(id)}`;

/** The same to all, @throws {Error} unless it was done to each of them. */
async function onAll(ids, body) {
  const { done, failed } = await each(ids, body);
  if (failed.length) throw new Error(failed[0].why);
  return done;
}

/** @param {() => object} current the page's data @param {() => void} changed reads the page again
 *  @returns {Record<string, (targets: string[], button: HTMLElement) => Promise<void>>} */
export function actsOf(current, changed) {
  const done = (text, undo) => {
    notice(text, { undo: undo && (() => undo().then(changed)) });
    changed();
  };

  /** What was done to alerts; Undo leaves them as they were. */
  const told = (text, moved) => done(text, moved.some(({ undo }) => undo.length) && (() => takeBack(moved)));

  const acts = {
    async acknowledge(ids) {
      const found = await ask({
        title: say('Acknowledge'),
        text: say('Others see that you have it, and your note. Nothing more is told unless it gets worse or recovers.'),
        fields: [
          { name: 'note', label: say('Note'), type: 'textarea', max: NOTE_CHARS },
          { name: 'mute', label: say('Hold its messages back'), type: 'select', options: [['', say('No')], ['1', say('for 1 h')], ['4', say('for 4 h')], ['24', say('for a day')], ['168', say('for a week')]] },
        ],
        confirm: say('Acknowledge'),
        send: ({ note, mute }) => onAll(ids, {
          action: 'acknowledge', note: note || null, ...(mute && { mute_until: new Date(Date.now() + Number(mute) * HOUR_MS).toISOString() }),
        }),
      });
      if (found) told(say('Acknowledged'), found.answer);
    },

    async not_the_cause(ids) {
      const found = await ask({
        title: say('Not the cause'),
        text: say('This closes the finding: it does not come back unless it gets more severe. What you write goes on record, and counts as a false alarm of its rule.'),
        fields: [{ name: 'note', label: say('What is the cause, or why is this not it?'), type: 'textarea', required: true, max: NOTE_CHARS }],
        confirm: say('Not the cause'),
        send: ({ note }) => onAll(ids, { action: 'not_the_cause', note }),
      });
      if (found) told(say('Closed as not the cause'), found.answer);
    },

    async resolve(ids) {
      told(say('Closed'), await onAll(ids, { action: 'resolve' }));
    },

    async reopen(ids) {
      told(say('Opened again'), await onAll(ids, { action: 'reopen' }));
    },

    async finish([run]) {
      const found = await ask({
        title: say('Mark as ended'),
        text: say('The run is no longer expected to report. It goes on by itself if steps arrive again.'),
        confirm: say('Mark as ended'),
        send: () => send('POST', `${runPath(run)}/finish`, { status: 'finished', reason: say('marked as ended on its page') }),
      });
      if (found) done(say('Marked as ended'));
    },

    async silence([run]) {
      const ends = new Date(Date.now() + SILENCE_HOURS * HOUR_MS).toISOString();
      const made = await send('POST', '/api/v1/silences', { run, ends, note: say('from the page of the run'), critical: true });
      done(say('Silenced for 2 h'), () => send('DELETE', `/api/v1/silences/${encodeURIComponent(made.id)}`));
    },

    async baseline([run], button) {
      await setBaseline(run, button.dataset.baseline);
    },

    async choose_baseline([run]) {
      const { items } = await get('/api/v1/runs', { limit: OFFERED });
      const others = items.filter((item) => item.run_id !== run && item.last_step != null);
      if (!others.length) {
        notice(say('There is no other run with steps.'));
        return;
      }
      const found = await ask({
        title: say('Choose a baseline'),
        text: say('Best is a BF16 run with the same data order. The run is judged anew against it.'),
        fields: [{ name: 'baseline', label: say('Baseline'), type: 'select', required: true, options: others.map((item) => [item.run_id, `${item.name} (${item.project})`]) }],
        confirm: say('Use it'),
      });
      if (found) await setBaseline(run, found.baseline);
    },
  };

  async function setBaseline(run, baseline) {
    const before = current().baseline;
    await send('PATCH', runPath(run), { baseline });
    done(say('The run is judged against its new baseline'), () => send('PATCH', runPath(run), { baseline: before }));
  }

  return acts;
}
