import type { Activations, GenerateOptions, ModelInfo, Sampling } from 'lowbit';
import { byId, el } from './dom.js';
import { bytes, engine, milliseconds } from './format.js';

const KEY = 'lowbit.settings';

/** What the user can set. Empty texts mean: the default, which for sampling is the model's. */
interface Values {
  system: string;
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
  activations: string;
  threads: string;
}

type Field = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

const DEFAULTS: Values = {
  system: '',
  temperature: '',
  topP: '',
  maxTokens: '1024',
  seed: '',
  activations: '',
  threads: '',
};

/** The sheet with the settings, which are kept in this browser. */
export class Settings {
  readonly #dialog = byId<HTMLDialogElement>('settings');
  readonly #form = byId<HTMLFormElement>('settings-form');
  readonly #reload = byId('reload');
  #values: Values = { ...DEFAULTS, ...stored() };
  #loadedWith = '';

  constructor(actions: { reload(): void; change(): void; forget(): void }) {
    for (const field of this.#fields()) field.value = this.#values[field.name as keyof Values];
    this.#show();
    this.#form.addEventListener('input', ({ target }) => this.#changed(target as Field));
    this.#form.addEventListener('submit', (event) => event.preventDefault());
    byId('open-settings').addEventListener('click', () => this.open());
    byId('model-chip').addEventListener('click', () => this.open());
    this.#dialog.addEventListener('click', (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
    for (const [id, action] of [['reload', actions.reload], ['change-model', actions.change], ['forget', actions.forget]] as const) {
      byId(id).addEventListener('click', () => {
        this.#dialog.close();
        action();
      });
    }
  }

  open(): void {
    this.#dialog.showModal();
  }

  get system(): string {
    return this.#values.system.trim();
  }

  /** For `loadModel`. */
  engine(): { activations?: Activations; threads?: number } {
    const { activations, threads } = this.#values;
    this.#loadedWith = this.#engineKey();
    this.#show();
    return {
      ...(activations !== '' && { activations: activations as Activations }),
      ...(Number(threads) >= 1 && { threads: Math.floor(Number(threads)) }),
    };
  }

  /** For `model.chat`; for `another` answer to the same question with another seed. */
  generation(another: boolean): GenerateOptions {
    const { temperature, topP, maxTokens, seed } = this.#values;
    const sampling: Sampling = {
      ...(temperature !== '' && { temperature: Number(temperature) }),
      ...(topP !== '' && { topP: Number(topP) }),
      ...(seed !== '' && { seed: Number(seed) }),
      ...(another && { seed: crypto.getRandomValues(new Uint32Array(1))[0] ?? 0 }),
    };
    return { sampling, ...(Number(maxTokens) >= 1 && { maxTokens: Math.floor(Number(maxTokens)) }) };
  }

  /** Shows what is loaded. */
  showFacts(info: ModelInfo | undefined): void {
    const facts = byId('facts');
    facts.hidden = byId('change-model').hidden = info === undefined;
    if (!info) return;
    this.#showDefaults(info.sampling);
    const rows: [string, string][] = [
      ['Model', info.name],
      ['Licence', info.licence || 'not stated'],
      ['Size', bytes(info.bytes)],
      ['Context', `${info.context} tokens`],
      ['Activations', info.activations],
      ['Runs on', `CPU, ${engine(info)}`],
      ['Loaded from', `${info.from} in ${milliseconds(info.loadMs.total)}`],
      ['Fingerprint', info.fingerprint.slice(0, 16)],
    ];
    facts.replaceChildren(...rows.flatMap(([term, value]) => [el('dt', {}, term), el('dd', {}, value)]));
  }

  /** Lets sliders that the user has not touched show what the model's makers recommend. */
  #showDefaults(sampling: ModelInfo['sampling']): void {
    for (const field of this.#fields()) {
      const name = field.name as 'temperature' | 'topP';
      if (field.type === 'range' && this.#values[name] === '') field.value = String(sampling[name]);
    }
    this.#show();
  }

  #changed(field: Field): void {
    this.#values[field.name as keyof Values] = field.value;
    localStorage.setItem(KEY, JSON.stringify(this.#values));
    this.#show();
  }

  #show(): void {
    for (const range of this.#form.querySelectorAll<HTMLInputElement>('input[type=range]')) {
      const output = range.parentElement?.querySelector('output');
      if (output) output.value = Number(range.value).toFixed(2);
    }
    this.#reload.hidden = this.#loadedWith === '' || this.#loadedWith === this.#engineKey();
  }

  #engineKey(): string {
    return `${this.#values.activations}/${this.#values.threads}`;
  }

  #fields(): NodeListOf<Field> {
    return this.#form.querySelectorAll('[name]');
  }
}

function stored(): Partial<Values> {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? '{}') as Partial<Values>;
  } catch {
    return {};
  }
}
