// The editor of a rule, below its card: thresholds, severity, on or off, project, a back-test, and what would change.
import { backtestBox } from './backtest.js';
import { $, element } from './core.js';
import { failure } from './notice.js';
import { EVERY, flat, holding, ownSetting, put, readRule, remove, told } from './rule_setting.js';
import { say } from './say.js';
import { localTime } from './times.js';

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const open = new Map(); // code -> what closes its editor

/** @returns {number|null} what was typed; null if it is no such number */
export function readNumber(text, { lowest, highest, whole }) {
  const value = NUMBER.test(text.trim()) ? Number(text) : NaN;
  return Number.isFinite(value) && value >= lowest && value <= highest && (!whole || Number.isInteger(value)) ? value : null;
}

/**
 * Opens the editor, or moves the focus into it when it is open.
 * @param {HTMLElement} card @param {{project: string, projects: string[], severities: Record<string, string>}} data
 * @param {() => void} onSaved reads the page again
 */
export async function editRule(card, data, onSaved) {
  const code = card.id;
  if (open.has(code)) {
    $('.editor input, .editor select', card)?.focus();
    return;
  }
  open.set(code, () => {});
  let rule;
  try {
    rule = await readRule(code);
  } catch (error) {
    open.delete(code);
    failure(error);
    return;
  }
  const form = editor(rule, data, { close: () => close(card), onSaved });
  card.classList.add('edit');
  card.append(form.node);
  open.set(code, form.stop);
  $('input, select', form.node).focus();
}

function close(card) {
  open.get(card.id)?.();
  open.delete(card.id);
  card.classList.remove('edit');
  $('.editor', card)?.remove();
  $(`#${card.id}-edit`)?.focus();
}

function editor(first, data, { close: leave, onSaved }) {
  let rule = first;
  let project = data.project;
  let before = holding(rule, project); // what the fields start from
  let version = ownSetting(rule, project)?.updated ?? null; // what this edit replaces
  const { code } = rule;
  const id = (name) => `${code}-edit-${name}`;

  const limits = rule.thresholds.map((limit) => limitField(limit, id(`t-${limit.name}`)));
  const severity = select(id('severity'), [['', say('As the rule says')], ['info', say('Note, no alert')], ['warning', data.severities.warning], ['critical', data.severities.critical]]);
  const scope = select(id('project'), [[EVERY, say('Every project')], ...data.projects.map((name) => [name, name])]);
  scope.value = project;
  const state = select(id('state'), [['on', say('On')], ['off', say('Off: it finds nothing')]]);
  const note = element('input', { className: 'in' });
  Object.assign(note, { id: id('note'), type: 'text', maxLength: 4000 });
  const clash = element('p', { className: 'note warn clash' });
  clash.setAttribute('role', 'alert');
  clash.hidden = true;
  const diff = element('div', { className: 'diff' });
  diff.setAttribute('role', 'group');
  diff.setAttribute('aria-label', say('What changes'));
  const save = button(say('Save'), 'btn pri');
  save.type = 'submit';
  const discard = button(say('Discard'));
  const reset = button(say('Reset to default'));
  const test = backtestBox({ code, setting: () => wanted() && { project, ...wanted() } });

  const node = element('form', { className: 'editor' });
  node.noValidate = true;
  node.setAttribute('aria-label', say('Edit {code}', { code }));
  if (limits.length) node.append(element('div', { className: 'fields' }, ...limits.map((field) => field.node)));
  else node.append(element('p', { className: 'note clash', text: say('An invariant has no threshold: it holds or it does not. Severity and scope can be changed.') }));
  const grid = [[say('Severity of its alarms'), severity], [say('State'), state], [say('Project'), scope]].map(([text, input]) => labelled(text, input));
  node.append(element('div', { className: 'grid3' }, ...grid), labelled(say('Why (for the change history)'), note), test.node, clash);
  node.append(element('div', { className: 'savebar' }, diff, element('span', { className: 'ends' }, reset, discard, save)));

  function fill() {
    const values = flat(rule, before);
    for (const field of limits) field.write(values[field.name]);
    severity.value = before.severity ?? '';
    state.value = before.enabled ? 'on' : 'off';
    show();
  }

  /** The setting as the fields say it; null while one of them is wrong. */
  function wanted() {
    const thresholds = {};
    for (const field of limits) {
      const value = field.read();
      if (value == null) return null;
      if (value !== field.limit.default) thresholds[field.name] = value;
    }
    return { enabled: state.value === 'on', severity: severity.value || null, thresholds };
  }

  function show() {
    const setting = wanted();
    const now = flat(rule, before);
    for (const field of limits) field.mark(now[field.name]);
    const lines = [];
    if (setting) {
      const next = flat(rule, setting);
      for (const name of Object.keys(now)) {
        if (now[name] === next[name]) continue;
        lines.push(line('m', '-', name, valueText(now[name])), line('p', '+', name, valueText(next[name])));
      }
    }
    if (!lines.length) lines.push(element('div', { className: 'same', text: setting ? say('Nothing changes yet.') : say('A field is wrong.') }));
    diff.replaceChildren(...lines);
    save.disabled = !setting || lines.length < 2;
    reset.hidden = !ownSetting(rule, project);
  }

  const valueText = (value) => {
    if (typeof value === 'boolean') return value ? say('on') : say('off');
    return value == null ? say('as the rule says') : (data.severities[value] ?? String(value));
  };

  function changed() {
    show();
    test.stale();
  }
  node.addEventListener('input', (event) => event.target !== note && event.target !== scope && !event.target.closest('.bt') && changed());
  scope.addEventListener('change', () => {
    project = scope.value;
    before = holding(rule, project);
    version = ownSetting(rule, project)?.updated ?? null;
    clash.hidden = true;
    fill();
    test.stale();
  });
  node.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') leave();
    if (!['Escape', 'Tab'].includes(event.key)) event.stopPropagation();
  });
  discard.addEventListener('click', leave);

  /** Reads the rule again and tells of what somebody else saved meanwhile. @returns {Promise<boolean>} whether so */
  async function isBehind() {
    const fresh = await readRule(code);
    const own = ownSetting(fresh, project);
    if ((own?.updated ?? null) === version) return false;
    rule = fresh;
    before = holding(rule, project);
    version = own?.updated ?? null;
    clash.textContent = own
      ? say('{name} saved another setting at {time} while you were editing. Your values are still in the fields, and what changes is shown against theirs. Save again to replace it.', { name: own.updated_by, time: localTime(new Date(own.updated)) })
      : say('Somebody reset this setting while you were editing. Your values are still in the fields. Save again to set them.');
    clash.hidden = false;
    show();
    return true;
  }

  async function act(work) {
    for (const item of [save, reset]) item.disabled = true;
    try {
      if (await isBehind()) return;
      await work();
      leave();
      onSaved();
    } catch (error) {
      failure(error);
    } finally {
      reset.disabled = false;
      show();
    }
  }

  const where = () => (project === EVERY ? say('every project') : project);
  node.addEventListener('submit', (event) => {
    event.preventDefault();
    const setting = wanted();
    if (!setting || save.disabled) return;
    act(async () => told(say('{code} is saved for {project}.', { code, project: where() }), await put(code, project, setting, note.value), onSaved));
  });
  reset.addEventListener('click', () =>
    act(async () => told(say('{code} is as it was written again for {project}.', { code, project: where() }), await remove(code, project), onSaved)),
  );
  fill();
  return { node, stop: test.stop };
}

function limitField(limit, id) {
  const input = element('input', { className: 'in' });
  Object.assign(input, { id, type: 'text', inputMode: limit.whole ? 'numeric' : 'decimal', autocomplete: 'off' });
  const label = element('label', { text: limit.name });
  label.htmlFor = id;
  const number = (value) => value.toLocaleString('en-US', { maximumSignificantDigits: 10 });
  const range = { low: number(limit.lowest), high: number(limit.highest), unit: limit.unit, value: number(limit.default) };
  const line = element('span', { className: 'line' }, input, element('span', { text: limit.unit }), element('span', { className: 'faint num', text: say('{low} to {high}, default {value}', range) }));
  const meaning = element('small', { text: limit.meaning });
  meaning.lang = 'en';
  meaning.id = `${id}-what`;
  const error = element('span', { className: 'err' });
  error.id = `${id}-error`;
  error.hidden = true;
  input.setAttribute('aria-describedby', `${meaning.id} ${error.id}`);
  const read = () => readNumber(input.value, limit);
  return {
    limit,
    name: limit.name,
    node: element('div', { className: 'limit' }, label, line, error, meaning),
    read,
    write: (value) => {
      input.value = String(value);
    },
    mark(before) {
      const value = read();
      error.hidden = value != null;
      error.textContent = value != null ? '' : limit.whole ? say('A whole number from {low} to {high} {unit}', range) : say('A number from {low} to {high} {unit}', range);
      input.setAttribute('aria-invalid', String(value == null));
      input.classList.toggle('chg', value !== before);
    },
  };
}

function line(kind, mark, name, value) {
  const made = element('div', { className: kind }, element('span', { className: 'sr', text: kind === 'm' ? say('before: ') : say('after: ') }));
  made.append(`${mark} ${name} = ${value}`);
  return made;
}

function labelled(text, input) {
  const label = element('label', { text });
  label.htmlFor = input.id;
  return element('div', { className: 'fld' }, label, input);
}

function select(id, options) {
  const made = element('select', { className: 'in' });
  made.id = id;
  for (const [value, word] of options) made.append(new Option(word, value));
  return made;
}

function button(text, className = 'btn') {
  const made = element('button', { className, text });
  made.type = 'button';
  return made;
}
