import { byId } from './dom.js';

const KEY = 'lowbit.theme';

/** Follows the system until the button is pressed, and then the user. */
export function setUpTheme(): void {
  const root = document.documentElement;
  const saved = localStorage.getItem(KEY);
  if (saved === 'light' || saved === 'dark') root.dataset['theme'] = saved;
  byId('theme').addEventListener('click', () => {
    const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    const next = (root.dataset['theme'] ?? system) === 'dark' ? 'light' : 'dark';
    root.dataset['theme'] = next;
    localStorage.setItem(KEY, next);
  });
}
