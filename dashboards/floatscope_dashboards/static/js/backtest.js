// A back-test of a rule: asks for it, follows it, and shows what the new setting would have said beside the present one.
import { get, send } from './api.js';
import { $, NO_VALUE, element, stepText } from './core.js';
import { plural, say } from './say.js';
import { localTime } from './times.js';

const ASK_EVERY_MS = 700;
const DAYS = [7, 30, 90, 365];
const DAY_MS = 86_400_000;
const MOST_NAMED = 20;
const MISSED = 4; // column of the table
const SIGNS = { confirmed: ['ok', '\u2713'], not_the_cause: ['no', '\u2715'], other: ['idle', '\u25cb'] };
const meanings = () => ({ confirmed: say('confirmed'), not_the_cause: say('not the cause'), other: say('nobody said') });

/**
 * The box below the fields of a rule.
 * @param {{code: string, setting: () => object|null}} options `setting` gives what to try, with its project; null while
 *   a field is wrong
 * @returns {{node: HTMLElement, stale: () => void, stop: () => void}} `stale` says that the values changed since
 */
export function backtestBox({ code, setting }) {
  const days = element('select', { className: 'in sm' });
  for (const n of DAYS) days.append(new Option(plural('last {n} day', 'last {n} days', n), String(n), n === 30, n === 30));
  days.setAttribute('aria-label', say('Runs of which time'));
  const state = element('span', { className: 'faint num' });
  state.setAttribute('role', 'status');
  const bar = element('progress');
  bar.hidden = true;
  bar.setAttribute('aria-label', say('Runs looked at'));
  const start = button(say('Back-test'));
  const cancel = button(say('Cancel'));
  cancel.hidden = true;
  const body = element('div', { className: 'bb' });
  body.tabIndex = 0;
  body.setAttribute('role', 'group');
  body.setAttribute('aria-label', say('Result of the back-test'));
  body.hidden = true;
  const head = element('div', { className: 'bh' }, element('b', { text: say('What would it have said?') }), days, state, bar);
  head.append(element('span', { className: 'right' }, cancel, start));
  const node = element('div', { className: 'bt' }, head, body);
  let running = null;
  let timer = 0;

  const busy = (id) => {
    running = id;
    start.disabled = Boolean(id);
    bar.hidden = cancel.hidden = !id;
  };

  async function follow(id) {
    let found;
    try {
      found = await get(`/api/v1/backtests/${id}`);
    } catch (error) {
      return failed(error.message);
    }
    if (running !== id) return undefined;
    const progress = found.result?.progress;
    if (found.state === 'waiting' || found.state === 'running') {
      state.textContent = progress ? say('{done} of {runs} runs', progress) : say('Waiting for its turn');
      if (progress) Object.assign(bar, { max: progress.runs || 1, value: progress.done });
      timer = setTimeout(() => follow(id), ASK_EVERY_MS);
      return undefined;
    }
    busy(null);
    if (found.state === 'cancelled') {
      state.textContent = say('Cancelled');
      return undefined;
    }
    if (found.state === 'failed') return failed(found.result?.reason ?? say('the reason is not known'));
    state.textContent = plural('{n} run judged', '{n} runs judged', found.result.totals.runs);
    start.textContent = say('Run again');
    body.replaceChildren(...result(found));
    body.hidden = false;
    return undefined;
  }

  function failed(why) {
    busy(null);
    state.textContent = '';
    const text = element('p', { className: 'err', text: say('The back-test failed: {why}. The rule is as it was; try again, or save without it.', { why }) });
    text.setAttribute('role', 'alert');
    body.replaceChildren(text);
    body.hidden = false;
  }

  start.addEventListener('click', async () => {
    const wanted = setting();
    if (!wanted) return;
    start.disabled = true;
    state.textContent = say('Asking for it');
    try {
      const made = await send('POST', `/api/v1/rules/${code}/backtest`, { ...wanted, days: Number(days.value) });
      busy(made.id);
      follow(made.id);
    } catch (error) {
      failed(error.message);
    }
  });
  cancel.addEventListener('click', async () => {
    try {
      await send('DELETE', `/api/v1/backtests/${running}`);
    } catch (error) {
      failed(error.message);
    }
  });
  return {
    node,
    stale() {
      if (!body.hidden && !$('.stale', body)) body.prepend(element('p', { className: 'stale warn', text: say('The values changed since. Run it again to see what they would do.') }));
    },
    stop() {
      clearTimeout(timer);
      if (running) send('DELETE', `/api/v1/backtests/${running}`).catch(() => {}); // it ends by itself as well
      running = null;
    },
  };
}

function button(text) {
  const made = element('button', { className: 'btn sm', text });
  made.type = 'button';
  return made;
}

function result({ created, request, result: found }) {
  const { totals } = found;
  if (!totals.runs) {
    const text = request.days
      ? plural('No run of the last {n} day can be judged. Choose more days, or save without a back-test.', 'No run of the last {n} days can be judged. Choose more days, or save without a back-test.', request.days)
      : say('No run can be judged.');
    return [element('p', { text }), ...skipped(found)];
  }
  return [table(totals), lanes(found, new Date(created), request.days ?? 30), ...changes(found), ...skipped(found)];
}

function table({ proposed, now, dropped }) {
  const made = element('table');
  const heads = [say('Setting'), say('Would fire'), say('Confirmed'), say('Not the cause'), say('Missed'), say('Typical delay')];
  made.createTHead().append(element('tr', {}, ...heads.map((text, index) => cell('th', text, index > 0))));
  const body = made.createTBody();
  const delay = (counts) => (counts.typical_delay_steps == null ? NO_VALUE : plural('{n} step', '{n} steps', counts.typical_delay_steps));
  const row = (word, counts, missed) => [word, counts.fired, counts.confirmed, counts.not_the_cause, missed, delay(counts)];
  for (const [name, values] of [['new', row(say('new'), proposed, dropped.confirmed)], ['now', row(say('now'), now, NO_VALUE)]]) {
    const line = element('tr', { className: name });
    line.append(...values.map((value, index) => cell('td', typeof value === 'number' ? stepText(value) : value, index > 0)));
    const why = name === 'now' ? say('What is confirmed was told by the present setting, so it cannot have missed any of it. What no setting told is not known.') : say('Confirmed alarms of the present setting that the new one would not raise.');
    explain(line.children[MISSED], why);
    if (values.at(-1) === NO_VALUE) explain(line.lastChild, values[1] ? say('How long it would take is not known.') : say('It would not fire, so there is no delay.'));
    body.append(line);
  }
  return made;
}

/** On hover, and for those who cannot hover. */
function explain(place, why) {
  place.title = why;
  place.append(element('span', { className: 'sr', text: ` ${why}` }));
}

function cell(tag, text, right) {
  const made = element(tag, { className: right ? 'r' : '', text: String(text) });
  if (tag === 'th') made.scope = 'col';
  return made;
}

/** When each alarm began, of both settings: a picture beside the table, which says it in numbers. */
function lanes(found, until, days) {
  const from = until.getTime() - days * DAY_MS;
  const box = element('div', { className: 'lanes' });
  const seen = new Set();
  let outside = 0;
  for (const [name, word] of [['proposed', say('new')], ['now', say('now')]]) {
    const lane = element('div', { className: 'lane' });
    lane.setAttribute('aria-hidden', 'true');
    for (const run of found.runs) {
      for (const alarm of run[name]) {
        const at = (new Date(alarm.time).getTime() - from) / (days * DAY_MS);
        const said = alarm.said ?? 'other';
        if (alarm.time == null || !(at >= 0 && at <= 1)) {
          outside += name === 'proposed';
          continue;
        }
        seen.add(said);
        const mark = element('i', { className: SIGNS[said][0], text: SIGNS[said][1] });
        mark.style.setProperty('left', `${(1 + 98 * at).toFixed(2)}%`);
        mark.title = say('{run}, step {step}: {said}', { run: run.name, step: stepText(alarm.onset_step), said: meanings()[said] });
        lane.append(mark);
      }
    }
    box.append(element('span', { text: word }), lane);
  }
  const ends = element('span', { className: 'ends2 num' }, element('span', { text: localTime(new Date(from), 'day') }), element('span', { text: localTime(until, 'day') }));
  box.append(element('span'), ends);
  const legend = element('p', { className: 'legend' });
  for (const said of seen) legend.append(element('span', { className: SIGNS[said][0], text: `${SIGNS[said][1]} ${meanings()[said]}` }));
  if (outside) legend.append(element('span', { text: plural('{n} alarm began before that or has no time.', '{n} alarms began before that or have no time.', outside) }));
  return element('div', {}, box, legend);
}

/** The runs in which the two settings differ. */
function changes(found) {
  const list = element('ul');
  for (const run of found.runs) {
    const gone = run.now.filter((alarm) => run.dropped.includes(alarm.id));
    const come = run.proposed.filter((alarm) => run.added.includes(alarm.id));
    for (const [alarm, text] of [...gone.map((a) => [a, lost(a)]), ...come.map((a) => [a, say('a new alarm at step {step}', { step: stepText(a.onset_step) })])]) {
      if (list.children.length >= MOST_NAMED) break;
      const link = element('a', { text: run.name });
      link.href = `/runs/${encodeURIComponent(run.run_id)}?at=${alarm.onset_step}`;
      list.append(element('li', {}, link, `: ${text}`));
    }
    if (run.elsewhere.length && list.children.length < MOST_NAMED) {
      list.append(element('li', { text: say('{run}: {rules} would speak instead', { run: run.name, rules: run.elsewhere.join(', ') }) }));
    }
  }
  if (!list.children.length) return [element('p', { text: say('In no run does it change what is said.') })];
  return [element('p', { text: say('What would change:') }), list];
}

function lost(alarm) {
  const step = stepText(alarm.onset_step);
  if (alarm.said === 'confirmed') return say('the alarm at step {step}, which somebody confirmed, is lost', { step });
  return alarm.said === 'not_the_cause' ? say('the false alarm at step {step} is gone', { step }) : say('the alarm at step {step} is gone', { step });
}

function skipped(found) {
  const { skipped: some, totals, runs_left_out: left } = found;
  const lines = [];
  if (left) lines.push(plural('{n} more run with alarms is counted and not listed.', '{n} more runs with alarms are counted and not listed.', left));
  if (totals.skipped) lines.push(plural('{n} run could not be looked at: {why}', '{n} runs could not be looked at: {why}', totals.skipped, { why: [...new Set(some.map((item) => item.why))].join('; ') }));
  return lines.map((text) => element('p', { text }));
}
