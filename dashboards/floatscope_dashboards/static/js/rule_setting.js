// What is set for a rule: reading it, saving it, and putting back what was there before.
import { get, send } from './api.js';
import { notice } from './notice.js';
import { plural, say } from './say.js';

/** Project of a setting that holds wherever nothing else is set. */
export const EVERY = '*';
const path = (code, what = '') => `/api/v1/rules/${code}${what}`;

/** A rule with its thresholds and all that is set for it. @param {string} code such as FS203 */
export const readRule = (code) => get(path(code));

/** What is set for exactly this project; null when nothing is. */
export const ownSetting = (rule, project) => rule.settings.find((setting) => setting.project === project) ?? null;

/** What holds in a project: its own setting, else the one for every project, else the rule as it was written. */
export function holding(rule, project) {
  return ownSetting(rule, project) ?? ownSetting(rule, EVERY) ?? { enabled: true, severity: null, thresholds: {} };
}

/** @param {{enabled: boolean, severity: string|null, thresholds: Record<string, number>}} setting */
export const put = (code, project, setting, note = null) =>
  send('PUT', path(code, '/settings'), {
    project,
    enabled: setting.enabled,
    severity: setting.severity,
    thresholds: setting.thresholds,
    note: note || null,
  });

/** Takes away what is set for exactly this project. */
export const remove = (code, project) => send('DELETE', `${path(code, '/settings')}?project=${encodeURIComponent(project)}`);

/** Puts back what a change replaced. @param {{rule: string, project: string, before: object|null}} change its answer */
const putBack = ({ rule, project, before }) => (before ? put(rule, project, before, before.note) : remove(rule, project));

/** Values by name, those that were not moved among them. */
export function flat(rule, setting) {
  const values = { enabled: setting.enabled, severity: setting.severity };
  for (const limit of rule.thresholds) values[limit.name] = setting.thresholds[limit.name] ?? limit.default;
  return values;
}

/** Says what a change did, with Undo. @param {object} change its answer @param {() => void} onSaved reads the page again */
export function told(text, change, onSaved) {
  const n = change.runs_judged_anew;
  const more = n ? ` ${plural('{n} live run is judged anew.', '{n} live runs are judged anew.', n)}` : '';
  notice(text + more, {
    undo: async () => {
      await putBack(change);
      onSaved();
    },
  });
}
