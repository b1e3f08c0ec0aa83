// The form of `ask` in dialog.js: fields with labels, what is wrong at its field, and what the values would do.
import { element } from './core.js';
import { openDialog } from './dialog.js';
import { failure } from './notice.js';
import { say } from './say.js';

const PREVIEW_MS = 250;
let count = 0;

/** As `ask` in dialog.js. */
export function askForm({ title, text = '', fields = [], confirm = say('OK'), danger = false, send = null, preview = null }) {
  return new Promise((resolve) => {
    let values = null;
    let sending = false;
    const form = element('form', { className: 'stk' });
    const made = fields.map((field) => fieldOf(field));
    const error = element('p', { className: 'err' });
    error.setAttribute('role', 'alert');
    error.hidden = true;
    const cancel = element('button', { className: 'btn', text: say('Cancel') });
    cancel.type = 'button';
    const go = element('button', { className: danger ? 'btn danger' : 'btn pri', text: confirm });
    const heading = element('h2', { text: title });
    const body = text ? [element('p', { className: 'muted', text })] : [];
    form.append(heading, ...body, ...made.map((field) => field.node), error);
    const read = () => Object.fromEntries(made.map((field) => [field.name, field.read()]));
    if (preview) form.append(previewOf(form, () => preview(read())));
    form.append(element('div', { className: 'ends' }, cancel, go));
    const dialog = openDialog([form], { label: title, onClose: () => sending || resolve(values) });
    cancel.addEventListener('click', () => dialog.close());
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const given = read();
      error.hidden = true;
      for (const input of form.querySelectorAll('[aria-invalid]')) input.removeAttribute('aria-invalid');
      if (send) {
        go.disabled = sending = true;
        try {
          given.answer = await send(given);
        } catch (problem) {
          if (!dialog.open) {
            resolve(null);
            failure(problem);
            return;
          }
          error.textContent = problem.message;
          error.hidden = false;
          atField(made.find((field) => field.name === problem.field), error);
          return;
        } finally {
          go.disabled = sending = false;
        }
      }
      values = given;
      if (dialog.open) dialog.close();
      else resolve(values); // closed while it was sent: it was done all the same
    });
    if (!fields.length) (danger ? cancel : go).focus();
  });
}

/** What is wrong stands at its field, and the focus goes there. */
function atField(field, error) {
  const input = field?.node.querySelector('input, textarea, select');
  if (!input) return;
  field.node.append(error);
  error.id = `${input.id}-error`;
  input.setAttribute('aria-invalid', 'true');
  input.setAttribute('aria-describedby', error.id);
  input.focus();
}

/** A line that says what the values would do; answers that come late are dropped. */
function previewOf(form, ask) {
  const line = element('p', { className: 'note' });
  line.setAttribute('role', 'status');
  line.hidden = true;
  let number = 0;
  let timer = 0;
  const look = async () => {
    const mine = ++number;
    const text = await Promise.resolve(ask()).catch((error) => error.message);
    if (mine !== number) return;
    line.textContent = text;
    line.hidden = !text;
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(look, PREVIEW_MS);
  };
  form.addEventListener('input', soon);
  form.addEventListener('change', soon);
  look();
  return line;
}

function fieldOf(field) {
  count += 1;
  const id = `field-${count}`;
  if (field.type === 'checks') return checks(field, id);
  const input = element(field.type === 'textarea' || field.type === 'select' ? field.type : 'input');
  input.id = id;
  if (field.type === 'checkbox') return checkbox(field, input);
  input.className = 'in';
  if (input.tagName === 'INPUT') input.type = field.type ?? 'text';
  for (const [value, word] of field.options ?? []) input.append(new Option(word, value));
  for (const [name, to] of [['max', input.type === 'number' || input.type === 'datetime-local' ? 'max' : 'maxLength'], ['min', 'min'], ['step', 'step'], ['placeholder', 'placeholder'], ['required', 'required']]) {
    if (field[name] != null) input[to] = field[name];
  }
  if (field.value != null) input.value = field.value;
  const label = element('label', { text: field.label });
  label.htmlFor = id;
  const node = element('div', { className: 'fld' }, label, input);
  if (field.hint) node.append(hintOf(field, input));
  return { name: field.name, node, read: () => (field.type === 'number' && input.value !== '' ? Number(input.value) : input.value) };
}

function checkbox(field, input) {
  input.type = 'checkbox';
  input.checked = Boolean(field.value);
  const label = element('label', { className: 'ck' }, input, element('span', { text: field.label }));
  const node = element('div', { className: 'fld' }, label);
  if (field.hint) node.append(hintOf(field, input));
  return { name: field.name, node, read: () => input.checked };
}

function checks(field, id) {
  const node = element('fieldset', { className: 'fld' }, element('legend', { text: field.label }));
  const boxes = field.options.map(([value, word]) => {
    const box = element('input');
    box.type = 'checkbox';
    box.value = value;
    box.checked = (field.value ?? []).includes(value);
    node.append(element('label', { className: 'ck' }, box, element('span', { text: word })));
    return box;
  });
  node.id = id;
  if (field.hint) node.append(hintOf(field, node));
  return { name: field.name, node, read: () => boxes.filter((box) => box.checked).map((box) => box.value) };
}

function hintOf(field, input) {
  const hint = element('small', { text: field.hint });
  hint.id = `${input.id}-hint`;
  input.setAttribute('aria-describedby', hint.id);
  return hint;
}
