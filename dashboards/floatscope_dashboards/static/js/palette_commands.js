// The pages and actions that the search finds, in the reader's words.
import { $ } from './core.js';
import { say } from './say.js';

/**
 * @param {Record<string, () => void>} actions theme, help and link of the page
 * @returns {{text: string, href?: string, run?: () => void, keys?: string, more?: string}[]}
 */
export function commands(actions) {
  const run = /^\/runs\/[^/]+/.exec(location.pathname)?.[0];
  const ofRun = run
    ? [
        { text: say('This run: verdict and charts'), href: run },
        { text: say('This run: tensors'), href: `${run}/tensors` },
        { text: say('This run: report to print or send'), href: `${run}/report` },
      ]
    : [];
  const signOut = $('.signout');
  return [
    ...ofRun.filter((item) => item.href !== location.pathname),
    { text: say('Go to runs'), href: '/', keys: 'g r' },
    { text: say('Go to compare'), href: '/compare', keys: 'g c' },
    { text: say('Go to alerts'), href: '/alerts', keys: 'g a' },
    { text: say('Go to rules, channels and silences'), href: '/rules', keys: 'g u' },
    { text: say('Go to settings: tokens, display, language'), href: '/settings', keys: 'g s' },
    { text: say('Switch between light and dark theme'), run: actions.theme, keys: 't' },
    { text: say('Copy a link to this view'), run: actions.link },
    { text: say('Show the keys of this page'), run: actions.help, keys: '?' },
    { text: say('Read the description of the API'), href: '/docs' },
    ...(signOut ? [{ text: say('Sign out'), run: () => signOut.requestSubmit() }] : []),
  ];
}
