// What people do with alerts, one or many: in one request of the server where that holds them all, with what was done,
// what was not and why, and a way back.
import { send } from './api.js';
import { failure, notice } from './notice.js';
import { plural, say } from './say.js';

const AT_ONCE = 500; // alerts of a request, so that a large incident shows how far it is; the server takes 2,000

/** States in which each action has something to do, by the letter of the state in data-ids. */
const APPLIES = { acknowledge: 'fs', resolve: 'fasr', reopen: 'ard', not_the_cause: 'fasr', note: 'fasrd' };

/** @param {string} ids letters and ids, as in data-ids @returns {string[]} ids of those on which the action does something */
export const those = (ids, action) =>
  ids
    .split(' ')
    .filter((one) => one && APPLIES[action].includes(one[0]))
    .map((one) => one.slice(1));

let working = 0;

/** Whether alerts are being acted on: what the server tells of them meanwhile is read at the end. */
export const isActing = () => working > 0;

const isLeftToUndo = (at) => ({ undo }) => undo.length > at;
const patch = (id, body) => send('PATCH', `/api/v1/alerts/${encodeURIComponent(id)}`, body);

/** Does the same to all of these, one request after the other; after a request that failed no other is sent.
 * @returns {Promise<{done: {id: string, undo: object[]}[], failed: {id: string, why: string}[]}>} */
export async function each(ids, body, onProgress = () => {}) {
  const done = [];
  const failed = [];
  working += 1;
  try {
    for (let first = 0; first < ids.length; first += AT_ONCE) {
      const alerts = ids.slice(first, first + AT_ONCE);
      for (const item of (await send('POST', '/api/v1/alerts/actions', { ...body, alerts })).items) {
        if (item.error) failed.push({ id: item.id, why: item.before ? say('it was changed meanwhile') : say('there is no such alert') });
        else done.push(item);
      }
      onProgress(done.length + failed.length, ids.length);
    }
  } catch (error) {
    for (const id of ids.slice(done.length + failed.length)) failed.push({ id, why: error.message });
  } finally {
    working -= 1;
  }
  return { done, failed };
}

const DONE = {
  acknowledge: (n) => plural('Acknowledged {n} alert', 'Acknowledged {n} alerts', n),
  resolve: (n) => plural('Resolved {n} alert', 'Resolved {n} alerts', n),
  reopen: (n) => plural('Opened {n} alert again', 'Opened {n} alerts again', n),
  not_the_cause: (n) => plural('Closed {n} alert: not the cause', 'Closed {n} alerts: not the cause', n),
  note: (n) => plural('Note added to {n} alert', 'Note added to {n} alerts', n),
};

const SAID_EVERY_MS = 2000;

/** Says how far it is, for what takes long. */
function sayProgress() {
  let next = Date.now() + SAID_EVERY_MS;
  return (done, all) => {
    if (Date.now() < next || done === all) return;
    next = Date.now() + SAID_EVERY_MS;
    notice(say('{done} of {all} alerts done', { done, all }));
  };
}

/**
 * Acts on alerts, and says what came of it. @param {string[]} ids @param {object} body the action, as the API takes it
 * @param {{onProgress?: (done: number, all: number) => void, after?: () => unknown}} [options] `after` is called when
 *   something changed, also by Undo
 * @returns {Promise<string[]>} ids of the alerts that were not changed
 */
export async function act(ids, body, { onProgress = sayProgress(), after = () => {} } = {}) {
  if (!ids.length) {
    notice(say('Nothing to do: they are in that state already.'));
    return [];
  }
  const { done, failed } = await each(ids, body, onProgress);
  if (failed.length) {
    const { why } = failed[0];
    failure(plural('{n} alert was not changed: {why}', '{n} alerts were not changed: {why}', failed.length, { why }));
  }
  const moved = done.filter(isLeftToUndo(0));
  if (done.length) notice(DONE[body.action](done.length), moved.length ? { undo: () => takeBack(moved).finally(after) } : {});
  await after();
  return failed.map(({ id }) => id);
}

/** Goes the way back that the server told for each, step by step; an alert that stands elsewhere by now stays there.
 * @param {{id: string, undo: object[]}[]} done */
export async function takeBack(done) {
  const failed = [];
  let left = done;
  for (let at = 0; (left = left.filter(isLeftToUndo(at))).length; at += 1) {
    const alike = new Map();
    for (const { id, undo } of left) {
      const step = JSON.stringify(undo[at]);
      alike.set(step, [...(alike.get(step) ?? []), id]);
    }
    for (const [step, ids] of alike) failed.push(...(await each(ids, JSON.parse(step), sayProgress())).failed);
    left = left.filter(({ id }) => !failed.some((one) => one.id === id));
  }
  if (failed.length) throw new Error(plural('{n} alert stays as it is: {why}', '{n} alerts stay as they are: {why}', failed.length, { why: failed[0].why }));
}

export const addNote = (id, note) => patch(id, { action: 'note', note });
export const unmute = (id) => patch(id, { action: 'note', note: say('Messages about it are let out again.'), mute_until: null });
