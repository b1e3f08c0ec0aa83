// The menu on every chart card: the picture as PNG, its numbers as CSV, its numbers as a table below it.
//
//   const tools = chartTools({
//     host: $('#loss-tools'),            // empty element in the card's header; gets the button and the menu
//     chart: $('#loss'),                 // the Plotly chart, or an element with one or more <svg>
//     after: $('#loss-note'),            // the table is put behind this element; the chart itself when left out
//     title: () => say('Training loss'), // in words, in the picture and above the table
//     run: () => data.name,              // whose it is; part of the file's name
//     range: () => say('Steps {from} to {to}', { from, to }),
//     table: () => ({ columns: ['Step', 'Mean'], rows: [[0, 2.5], [1, NaN], [2, null]] }), // exactly what is shown
//   });
//   tools.refresh();                     // after the chart got other numbers: an open table follows
//
// Cells: numbers as they are (NaN, Infinity and -Infinity stay three texts), null or undefined for "nothing was
// logged" (an empty field in the CSV, a dash in the table), texts. `table` may return a promise. Style: charts.css,
// which every page with `charts=True` loads; other pages name it in Page.styles.
import { announce, element, numberText } from './core.js';
import { failure } from './notice.js';
import { plural, say } from './say.js';

const TABLE_ROWS = 200;

export function chartTools({ host, chart, after = chart, title, run, range, table }) {
  const label = title();
  const button = element('button', { className: 'btn sm tools-open', text: '\u22ef' });
  button.type = 'button';
  button.setAttribute('aria-expanded', 'false');
  button.setAttribute('aria-label', say('Save or list the numbers: {chart}', { chart: label }));
  const menu = element('div', { className: 'tools-menu' });
  menu.hidden = true;
  const box = element('section', { className: 'tablebox' });
  box.hidden = true;
  box.setAttribute('aria-label', say('Table: {chart}', { chart: label }));
  const listed = item(say('Show as table'), toggleTable);
  listed.dataset.tool = 'table';
  const png = item(say('Save as PNG'), () => done(savePicture(), say('The picture could not be made: {why}')));
  png.dataset.tool = 'png';
  const csv = item(say('Save as CSV'), () => done(saveNumbers(), say('The numbers could not be saved: {why}')));
  csv.dataset.tool = 'csv';
  menu.append(png, csv, listed);
  host.classList.add('tools');
  host.replaceChildren(button, menu);
  after.after(box);

  function item(text, act) {
    const made = element('button', { text });
    made.type = 'button';
    made.addEventListener('click', () => {
      close();
      button.focus();
      act();
    });
    return made;
  }

  function close() {
    menu.hidden = true;
    button.setAttribute('aria-expanded', 'false');
  }

  button.addEventListener('click', () => {
    menu.hidden = !menu.hidden;
    button.setAttribute('aria-expanded', String(!menu.hidden));
  });
  host.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || menu.hidden) return;
    event.stopPropagation();
    close();
    button.focus();
  });
  addEventListener('click', (event) => !host.contains(event.target) && close());
  host.addEventListener('focusout', (event) => event.relatedTarget && !host.contains(event.relatedTarget) && close());

  const words = () => [title(), [run(), range()].filter(Boolean).join(', ')];
  const fileName = (kind) => `${`${run()} ${title()}`.replace(/[^\p{L}\p{N}._-]+/gu, '-').slice(0, 100)}.${kind}`;

  const files = () => import('./chart_files.js'); // most visits save nothing

  async function savePicture() {
    const { picture, save } = await files();
    save(await picture(chart, words()), fileName('png'));
  }

  async function saveNumbers() {
    const { csvText, save } = await files();
    save(new Blob([csvText(await table())], { type: 'text/csv;charset=utf-8' }), fileName('csv'));
  }

  async function toggleTable() {
    box.hidden = !box.hidden;
    listed.textContent = box.hidden ? say('Show as table') : say('Hide the table');
    if (box.hidden) return;
    await refresh();
    announce(say('The table is below the chart.'));
  }

  async function refresh() {
    if (box.hidden) return;
    const { columns, rows } = await table();
    const place = box.querySelector('.scrollx');
    const at = [place?.scrollTop ?? 0, place?.scrollLeft ?? 0];
    const hidden = rows.length - TABLE_ROWS;
    const more = hidden > 0 ? plural('{n} more row is in the CSV.', '{n} more rows are in the CSV.', hidden) : '';
    const scroll = element('div', { className: 'scrollx' }, tableOf(columns, rows.slice(0, TABLE_ROWS)));
    scroll.tabIndex = 0;
    scroll.setAttribute('role', 'region');
    scroll.setAttribute('aria-label', say('Table: {chart}', { chart: label }));
    const caption = element('p', { className: 'note', text: [...words(), more].filter(Boolean).join('. ') });
    box.replaceChildren(caption, rows.length ? scroll : element('p', { className: 'note', text: say('There are no numbers here.') }));
    [scroll.scrollTop, scroll.scrollLeft] = at;
  }

  return { refresh };
}

async function done(work, failed) {
  try {
    await work;
  } catch (error) {
    failure(failed.replace('{why}', error.message));
  }
}

function tableOf(columns, rows) {
  const head = element('tr', {}, ...columns.map((text) => element('th', { text })));
  const body = rows.map((row) => element('tr', {}, ...row.map((cell) => element('td', { text: shownCell(cell) }))));
  return element('table', {}, element('thead', {}, head), element('tbody', {}, ...body));
}

const shownCell = (cell) => (typeof cell === 'string' ? cell : numberText(cell ?? null));
