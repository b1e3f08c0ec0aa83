// The event stream of a page, and the chip that says how fresh the page is. A stream without a beat is dead although the
// browser holds it open, and is opened anew. After a gap the page is read again. One stream per tab, closed while hidden:
// browsers allow six connections to a server.
import { $, durationText } from './core.js';
import { say } from './say.js';
import { checkSession } from './strips.js';
import { localTime } from './times.js';

const RETRY_S = [1, 2, 5, 10, 30];
const RECONNECTING_AFTER_S = 10;
const OFFLINE_AFTER_S = 60;
const CHIP_EVERY_MS = 1000;
const BEAT_S = 5; // until the stream says how often it beats

const QUIET = { stalled: say('Last data'), finished: say('Finished'), failed: say('Failed'), crashed: say('Crashed') };

/** What the chip says of a run that sends nothing; '' while it goes on. @param {string} status */
export const quietWord = (status) => QUIET[status] ?? '';

/**
 * @param {{url: string, ageS: number|null, notLive: () => string, onEvent: (kind: string, data: object) => void,
 *   onResume: () => void}} options notLive: the word for a run that is silent or has ended, else ''.  onEvent hears tick,
 *   verdict, run and alert.  onResume: read everything again
 */
export function startLive({ url, ageS, notLive, onEvent, onResume }) {
  let stream = null;
  let open = false;
  let opened = false;
  let tries = 0;
  let timer = 0;
  let lastData = ageS == null ? null : Date.now() - ageS * 1000;
  let brokenSince = Date.now();
  let lastSeen = Date.now(); // when the page was up to date last
  let heard = Date.now();
  let beatS = BEAT_S;
  const own = new URL(url, location.origin).searchParams.get('run');
  const address = own ? `${url}&alerts=all` : url;

  function listen(kind) {
    stream.addEventListener(kind, (event) => {
      let data;
      try {
        data = JSON.parse(event.data);
      } catch {
        data = {};
      }
      hear();
      if (kind === 'beat') {
        if (data.every_s > 0) beatS = data.every_s;
        return;
      }
      if (kind === 'tick') lastData = Date.now();
      if (kind === 'alert') {
        countAlerts();
        if (own && data.run && data.run !== own) return;
      }
      onEvent(kind, data);
    });
  }

  function connect() {
    clearTimeout(timer);
    stream = new EventSource(address);
    heard = Date.now();
    stream.onerror = () => {
      if (open) brokenSince = lastSeen = Date.now();
      open = false;
      heard = Date.now();
      if (stream.readyState === EventSource.CLOSED) {
        checkSession();
        timer = setTimeout(connect, 1000 * RETRY_S[Math.min(tries, RETRY_S.length - 1)]);
        tries += 1;
      }
      chip();
    };
    for (const kind of ['beat', 'tick', 'verdict', 'run', 'alert']) listen(kind);
    stream.addEventListener('reset', resume);
  }

  /** A stream is open when it says something: a beat, at once. */
  function hear() {
    heard = Date.now();
    if (open) return;
    if (opened) resume();
    open = opened = true;
    tries = 0;
    chip();
  }

  function resume() {
    countAlerts();
    onResume();
  }

  function revive() {
    if (!stream || stream.readyState === EventSource.CLOSED) return; // tried again by itself
    if (Date.now() - heard < 1000 * (beatS + RECONNECTING_AFTER_S)) return;
    if (open) brokenSince = lastSeen = heard;
    open = false;
    stream.close();
    connect();
  }

  const countAlerts = () => import('./alert_count.js').then((module) => module.freshAlertCount(), () => {}); // the chip says why

  function close() {
    clearTimeout(timer);
    stream?.close();
    stream = null;
    if (open) brokenSince = lastSeen = Date.now();
    open = false;
  }

  const clock = () => localTime(new Date(lastSeen));
  const agoText = () => say('{duration} ago', { duration: durationText((Date.now() - lastData) / 1000) });

  function chip() {
    revive();
    const word = $('#live-word');
    const age = $('#live-age');
    if (!word) return;
    const silentS = (Date.now() - brokenSince) / 1000;
    const calm = silentS < RECONNECTING_AFTER_S;
    const live = open || (opened && calm);
    const state = live ? (notLive() ? 'quiet' : 'live') : silentS > OFFLINE_AFTER_S ? 'offline' : opened ? 'reconnecting' : 'connecting';
    const words = {
      live: say('Live'),
      quiet: notLive(),
      offline: say('Offline, data from {time}', { time: clock() }),
      reconnecting: say('Reconnecting'),
      connecting: say('Connecting'),
    };
    $('#live').dataset.state = state;
    if (word.textContent !== words[state]) word.textContent = words[state];
    age.textContent = live && lastData != null ? agoText() : '';
    document.body.classList.toggle('is-offline', state === 'offline');
    for (const time of document.querySelectorAll('time[data-age]')) {
      if (lastData != null) time.textContent = agoText();
    }
  }

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) close();
    else if (!stream) connect();
  });
  addEventListener('pagehide', close);
  addEventListener('pageshow', () => {
    if (!stream && !document.hidden) connect();
  });
  setInterval(chip, CHIP_EVERY_MS);
  if (!document.hidden) connect();
  chip();
}
