// The files a chart is saved as: its numbers as CSV, its picture as PNG. Loaded when the reader asks for one.
import { element } from './core.js';
import { say } from './say.js';

const SCALE = 2;
const PAD = 16;
const HEAD = 56;

/** One line a row. Numbers in full; a text that a spreadsheet would run as a formula gets an apostrophe. */
export function csvText({ columns, rows }) {
  const field = (cell) => {
    if (cell == null) return '';
    if (typeof cell === 'number') return Number.isNaN(cell) ? 'NaN' : Number.isFinite(cell) ? String(cell) : cell > 0 ? 'Inf' : '-Inf';
    const text = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : String(cell);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(field).join(',')).join('\r\n') + '\r\n';
}

/** Offers a file to the reader. @param {Blob} content */
export function save(content, name) {
  const link = element('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The chart with two lines above it, on the page's surface, as a PNG. */
export async function picture(chart, [title, below]) {
  const colours = getComputedStyle(document.documentElement);
  const size = chart.getBoundingClientRect();
  const canvas = document.createElement('canvas');
  canvas.width = SCALE * (size.width + 2 * PAD);
  canvas.height = SCALE * (size.height + HEAD + PAD);
  const pen = canvas.getContext('2d');
  pen.scale(SCALE, SCALE);
  pen.fillStyle = shownColour('--surface');
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const write = (text, y, font, colour) => {
    pen.font = `${font} ${colours.getPropertyValue('--font')}`;
    pen.fillStyle = shownColour(colour);
    pen.fillText(fitting(pen, text, size.width), PAD, y);
  };
  write(title, 25, '600 15px', '--text');
  write(below, 44, '400 12px', '--text-2');
  for (const { url, x, y, width, height } of await images(chart, size)) {
    const image = new Image();
    image.src = url;
    await image.decode();
    pen.drawImage(image, PAD + x, HEAD + y, width, height);
  }
  return new Promise((made, failed) => {
    canvas.toBlob((blob) => (blob ? made(blob) : failed(new Error(say('the picture is too large')))), 'image/png');
  });
}

/** The colour of a token as it is shown now: tokens are written as light-dark(), which a canvas does not read. */
function shownColour(token) {
  const probe = element('i');
  probe.hidden = true;
  probe.style.setProperty('color', `var(${token})`);
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function fitting(pen, text, width) {
  let short = text;
  while (short.length > 4 && pen.measureText(short).width > width) short = `${short.slice(0, Math.floor(short.length * 0.9) - 1)}\u2026`;
  return short;
}

async function images(chart, size) {
  if (chart.classList.contains('js-plotly-plot')) {
    const { width, height } = size;
    return [{ url: await window.Plotly.toImage(chart, { format: 'png', scale: SCALE, width, height }), x: 0, y: 0, width, height }];
  }
  const found = chart.matches('svg') ? [chart] : [...chart.querySelectorAll('svg:not(.i)')];
  return found.map((svg) => {
    const at = svg.getBoundingClientRect();
    return { url: svgUrl(svg, at), x: at.left - size.left, y: at.top - size.top, width: at.width, height: at.height };
  });
}

const PAINT = ['color', 'fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-opacity', 'opacity', 'font', 'text-anchor', 'dominant-baseline', 'display', 'visibility'];

/** An <svg> as a picture by itself: what the style sheets say is written into it, since they do not reach a picture. */
function svgUrl(svg, { width, height }) {
  const copy = svg.cloneNode(true);
  copy.setAttribute('width', width);
  copy.setAttribute('height', height);
  const copies = [copy, ...copy.querySelectorAll('*')];
  for (const [index, original] of [svg, ...svg.querySelectorAll('*')].entries()) {
    const style = getComputedStyle(original);
    copies[index].setAttribute('style', PAINT.map((name) => `${name}:${style.getPropertyValue(name)}`).join(';'));
  }
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}
