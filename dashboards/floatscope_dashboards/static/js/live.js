// The event stream of a page, and the chip that says how fresh the page is.
// EventSource reconnects by itself and sends Last-Event-ID; when the server refused it, a new one is opened and the
// page is read again, so that nothing is lost either way. One stream per tab, closed while the tab is hidden:
// browsers allow only six connections to one server.
import { $, durationText } from './core.js';

const RETRY_S = [1, 2, 5, 10, 30];
const OFFLINE_AFTER_S = 60;
const CHIP_EVERY_MS = 1000;

/**
 * @param {{url: string, ageS: number|null, notLive: () => string, onEvent: (kind: string, data: object) => void,
 *   onResume: () => void}} options `notLive` gives the word for a run that is silent or has ended, else ''
 */
export function startLive({ url, ageS, notLive, onEvent, onResume }) {
  let stream = null;
  let open = false;
  let opened = false;
  let tries = 0;
  let timer = 0;
  let lastData = ageS == null ? null : Date.now() - ageS * 1000;
  let brokenSince = Date.now();

  function listen(kind) {
    stream.addEventListener(kind, (event) => {
      let data;
      try {
        data = JSON.parse(event.data);
      } catch {
        data = {}; // an event we cannot read still says that something changed
      }
      if (kind === 'tick') lastData = Date.now();
      onEvent(kind, data);
    });
  }

  function connect() {
    clearTimeout(timer);
    stream = new EventSource(url);
    stream.onopen = () => {
      const resumed = opened;
      open = opened = true;
      tries = 0;
      if (resumed) onResume();
      chip();
    };
    stream.onerror = () => {
      if (open) brokenSince = Date.now();
      open = false;
      if (stream.readyState === EventSource.CLOSED) {
        timer = setTimeout(connect, 1000 * RETRY_S[Math.min(tries, RETRY_S.length - 1)]);
        tries += 1;
      }
      chip();
    };
    for (const kind of ['tick', 'verdict', 'run']) listen(kind);
    stream.addEventListener('reset', onResume); // the server may have missed something: read the page again
  }

  function close() {
    clearTimeout(timer);
    stream?.close();
    stream = null;
    open = false;
    brokenSince = Date.now();
  }

  function clock() {
    return lastData == null ? 'page load' : new Date(lastData).toTimeString().slice(0, 5);
  }

  function chip() {
    const word = $('#live-word');
    const age = $('#live-age');
    if (!word) return;
    const silentS = (Date.now() - brokenSince) / 1000;
    const state = open ? (notLive() ? 'quiet' : 'live') : silentS > OFFLINE_AFTER_S ? 'offline' : opened ? 'reconnecting' : 'connecting';
    const words = {
      live: 'Live',
      quiet: notLive(),
      offline: `Offline, data from ${clock()}`,
      reconnecting: 'Reconnecting',
      connecting: 'Connecting',
    };
    $('#live').dataset.state = state;
    if (word.textContent !== words[state]) word.textContent = words[state];
    age.textContent = open && lastData != null ? `${durationText((Date.now() - lastData) / 1000)} ago` : '';
    document.body.classList.toggle('is-offline', state === 'offline');
    for (const time of document.querySelectorAll('time[data-age]')) {
      if (lastData != null) time.textContent = `${durationText((Date.now() - lastData) / 1000)} ago`;
    }
  }

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) close();
    else if (!stream) connect();
  });
  addEventListener('pagehide', close);
  setInterval(chip, CHIP_EVERY_MS);
  if (!document.hidden) connect();
  chip();
}
