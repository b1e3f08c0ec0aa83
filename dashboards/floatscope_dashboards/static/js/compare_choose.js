// Choosing two runs: the page works by itself; a run cannot be compared with itself, which is said before asking.
import { $, $$ } from './core.js';
import { say } from './say.js';
import { startShell } from './shell.js';

function check() {
  const [run] = $$('input[name=run]:checked');
  const baselines = $$('input[name=baseline]');
  for (const other of baselines) {
    other.setCustomValidity(run && other.checked && other.value === run.value ? say('Choose two different runs.') : '');
  }
}

document.addEventListener('change', check);
check();
startShell({ keys: { Escape: { run: () => $('#q')?.blur(), text: say('Leave the search field') } } });
