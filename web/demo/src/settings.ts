import type { Activations, Device, GenerateOptions, LoadOptions, Model, Sampling } from 'lowbit';
import { byId, el, say } from './dom.js';
import { bytes, engine, milliseconds } from './format.js';

const KEY = 'lowbit.settings';

/** What the user can set. Empty texts mean: the default. */
interface Values {
  system: string;
  /** `custom` when the three after it count. */
  sampling: string;
  temperature: string;
  topP: string;
  repetitionPenalty: string;
  maxTokens: string;
  seed: string;
  activations: string;
  threads: string;
  device: string;
}

type Field = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

const DEFAULTS: Values = {
  system: '',
  sampling: '',
  temperature: '',
  topP: '',
  repetitionPenalty: '',
  maxTokens: '1024',
  seed: '',
  activations: '',
  threads: '',
  device: '',
};

/** The sliders, each of which is a value of {@link Sampling}. */
const SLIDERS = ['temperature', 'topP', 'repetitionPenalty'] as const;

type Recommended = Required<Pick<Sampling, (typeof SLIDERS)[number]>>;

/** Keeps a small model that always says the likeliest word from going round in circles. */
const MILD_PENALTY = 1.1;

/** What a model gets whose makers recommend nothing. */
const FALLBACK: Recommended = { temperature: 0, topP: 0.9, repetitionPenalty: MILD_PENALTY };

/** The least chance that makes another answer to the same question another one. */
const SOME_CHANCE = { temperature: 0.2, topP: 0.9 };

/** The sheet with the settings, which are kept in this browser. */
export class Settings {
  readonly #dialog = byId<HTMLDialogElement>('settings');
  readonly #form = byId<HTMLFormElement>('settings-form');
  readonly #reload = byId('reload');
  readonly #detail = byId('sampling-detail');
  #values: Values = { ...DEFAULTS, ...stored() };
  #recommended = FALLBACK;
  /** Whether that comes from the model's makers. */
  #byMakers = true;
  #loadedWith = '';
  #model: Model | undefined;

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
    if (this.#model) this.showFacts(this.#model); // it may have had to change its device
    this.#dialog.showModal();
  }

  get system(): string {
    return this.#values.system.trim();
  }

  /** For `loadModel`. */
  engine(): Pick<LoadOptions, 'activations' | 'threads' | 'device'> {
    const { activations, threads, device } = this.#values;
    this.#loadedWith = this.#engineKey();
    this.#show();
    return {
      ...(activations !== '' && { activations: activations as Activations }),
      ...(device !== '' && { device: device as Device }),
      ...(Number(threads) >= 1 && { threads: Math.floor(Number(threads)) }),
    };
  }

  /** For `model.chat`; for `another` answer to the same question with another seed. */
  generation(another: boolean): GenerateOptions {
    const { maxTokens, seed } = this.#values;
    const choice = this.#custom ? this.#own() : this.#byMakers ? {} : { repetitionPenalty: MILD_PENALTY };
    const isGreedy = this.#inForce().temperature === 0;
    const sampling: Sampling = {
      ...choice,
      ...(seed !== '' && { seed: Number(seed) }),
      ...(another && { seed: crypto.getRandomValues(new Uint32Array(1))[0] ?? 0 }),
      ...(another && isGreedy && SOME_CHANCE),
    };
    return { sampling, ...(Number(maxTokens) >= 1 && { maxTokens: Math.floor(Number(maxTokens)) }) };
  }

  /** Shows what is loaded. */
  showFacts(model: Model | undefined): void {
    this.#model = model;
    const info = model?.info;
    const facts = byId('facts');
    facts.hidden = byId('change-model').hidden = info === undefined;
    if (!info) return;
    this.#recommend(info.sampling);
    const rows: [string, string][] = [
      ['Model', info.name],
      ['Licence', info.licence || 'not stated'],
      ['Size', bytes(info.bytes)],
      ['Context', `${info.context} tokens`],
      ['Activations', info.activations],
      ['Runs on', info.device === 'cpu' ? `CPU, ${engine(info)}` : engine(info)],
      ['Loaded from', `${info.from} in ${milliseconds(info.loadMs.total)}`],
      ['Fingerprint', info.fingerprint.slice(0, 16)],
    ];
    facts.replaceChildren(...rows.flatMap(([term, value]) => [el('dt', {}, term), el('dd', {}, value)]));
  }

  /** Takes over what is recommended for a model: by its makers, or, where they say nothing, by this page. */
  #recommend({ temperature, topP, repetitionPenalty }: Recommended): void {
    this.#byMakers = temperature !== 0 || repetitionPenalty !== 1;
    this.#recommended = this.#byMakers ? { temperature, topP, repetitionPenalty } : FALLBACK;
    this.#show();
  }

  get #custom(): boolean {
    return this.#values.sampling === 'custom';
  }

  /** What the user has chosen with the sliders. */
  #own(): Recommended {
    const value = (name: keyof Recommended) => Number(this.#values[name] || this.#recommended[name]);
    return { temperature: value('temperature'), topP: value('topP'), repetitionPenalty: value('repetitionPenalty') };
  }

  /** What answers are sampled with. */
  #inForce(): Recommended {
    return this.#custom ? this.#own() : this.#recommended;
  }

  #changed(field: Field): void {
    const name = field.name as keyof Values;
    // Whoever moves one slider keeps what the others show.
    const begins = name === 'sampling' || (!this.#custom && field.type === 'range');
    if (begins) for (const slider of SLIDERS) this.#values[slider] = String(this.#recommended[slider]);
    if (field.type === 'range') this.#values.sampling = 'custom';
    this.#values[name] = field.value;
    localStorage.setItem(KEY, JSON.stringify(this.#values));
    this.#show();
  }

  #show(): void {
    const sampling = this.#inForce();
    for (const name of SLIDERS) {
      const slider = this.#field(name);
      slider.value = String(sampling[name]);
      const output = slider.parentElement?.querySelector('output');
      if (output) output.value = sampling[name].toFixed(2);
    }
    this.#field('sampling').value = this.#values.sampling;
    const recommended = this.#byMakers ? 'As the model’s makers recommend.' : 'Always the likeliest word, repeating less.';
    // Never empty: the sliders must not move under a finger.
    say(this.#detail, this.#custom ? 'Choose “recommended” to go back.' : recommended);
    this.#reload.hidden = this.#loadedWith === '' || this.#loadedWith === this.#engineKey();
  }

  #engineKey(): string {
    const { activations, threads, device } = this.#values;
    return `${activations}/${threads}/${device}`;
  }

  #field(name: keyof Values): Field {
    return this.#form.elements.namedItem(name) as Field;
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
