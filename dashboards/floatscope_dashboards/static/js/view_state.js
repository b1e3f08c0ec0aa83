// What of the run page's view is in its address, so that a link shows the same view and the browser's Back undoes a zoom.
//
//   from, to   steps shown (whole numbers), or last=N: the newest N steps, followed while the run goes on
//   log=1      logarithmic loss     half=500  half-life of the smoothing in steps, 0 for none     full=1  no value left out
//   x=tokens|time  what the horizontal axis says
//
// Keys that are not known stay and do nothing; values that make no sense are ignored.
const AXES = ['step', 'tokens', 'time'];

const whole = (text) => (text != null && /^\d{1,15}$/.test(text) ? Number(text) : null);

/** @returns {{range: [number, number]|null, last: number|null, log: boolean, half: number|null, full: boolean, x: string}} */
export function readView() {
  const query = new URLSearchParams(location.search);
  const [from, to] = [whole(query.get('from')), whole(query.get('to'))];
  const last = whole(query.get('last')) || null;
  return {
    range: from != null && to != null && from < to ? [from, to] : null,
    last,
    log: query.get('log') === '1',
    half: whole(query.get('half')),
    full: query.get('full') === '1',
    x: AXES.includes(query.get('x')) ? query.get('x') : 'step',
  };
}

/** Puts a view into the address. @param {object} view as readView gives it @param {{commit?: boolean}} [options] commit
 *   makes a new entry in the browser's history */
export function putView(view, { commit = true } = {}) {
  const address = addressOf(view);
  if (address === location.pathname + location.search + location.hash) return;
  if (commit) history.pushState(history.state, '', address);
  else history.replaceState(history.state, '', address);
}

/** The address of a view. */
export function addressOf({ range, last, log, half, full, x }) {
  const query = new URLSearchParams(location.search);
  const put = (key, value) => (value == null ? query.delete(key) : query.set(key, String(value)));
  put('from', last == null && range ? Math.floor(range[0]) : null);
  put('to', last == null && range ? Math.ceil(range[1]) : null);
  put('last', last);
  put('log', log ? 1 : null);
  put('half', half);
  put('full', full ? 1 : null);
  put('x', x === 'step' ? null : x);
  const text = query.toString();
  return location.pathname + (text ? `?${text}` : '') + location.hash;
}
