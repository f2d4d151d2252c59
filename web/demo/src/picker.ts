import { LowbitError, loadModel, type LoadOptions, type LoadProgress, type Model, type ModelSource } from 'lowbit';
import { byId, say } from './dom.js';
import { bytes, duration } from './format.js';

/** The model that is served beside the page. */
export const DEFAULT_URL = './models/smollm2.lowbit';

const LAST = 'lowbit.model';

/** Chooses a model and loads it. */
export class Picker {
  readonly #choices = byId('choices');
  readonly #loading = byId('loading');
  readonly #bar = byId<HTMLProgressElement>('loading-bar');
  readonly #detail = byId('loading-detail');
  readonly #percent = byId('loading-percent');
  readonly #error = byId('picker-error');
  #abort: AbortController | undefined;

  constructor(
    private readonly options: () => Pick<LoadOptions, 'activations' | 'threads' | 'device'>,
    private readonly loaded: (model: Model, source: ModelSource, warnings: string[]) => void,
    private readonly warnLater: (warning: string) => void,
  ) {
    byId('pick-default').addEventListener('click', () => this.load(DEFAULT_URL));
    byId('pick-url').addEventListener('submit', (event) => {
      event.preventDefault();
      this.load(byId<HTMLInputElement>('url').value.trim());
    });
    const file = byId<HTMLInputElement>('file');
    byId('pick-file').addEventListener('click', () => file.click());
    file.addEventListener('change', () => {
      const chosen = file.files?.[0];
      file.value = '';
      if (chosen) this.load(chosen);
    });
    byId('loading-cancel').addEventListener('click', () => this.#abort?.abort());
    this.#acceptDrops();
  }

  /** Loads the model of the last visit, if that was one with a URL: it is likely to be kept here. */
  resume(): void {
    const last = localStorage.getItem(LAST);
    if (last) this.load(last);
  }

  /** Forgets the model of the last visit. */
  forget(): void {
    localStorage.removeItem(LAST);
  }

  async load(source: ModelSource): Promise<void> {
    this.#abort?.abort();
    const abort = (this.#abort = new AbortController());
    const warnings: string[] = [];
    let isLoaded = false;
    const meter = new Meter();
    this.#show('loading');
    byId('loading-name').textContent = nameOf(source);
    this.#progress({ phase: 'engine', loaded: 0, total: 0, resumed: 0 }, meter);
    try {
      const model = await loadModel(source, {
        ...this.options(),
        signal: abort.signal,
        onProgress: (progress) => this.#progress(progress, meter),
        onWarning: ({ message }) => (isLoaded ? this.warnLater(message) : warnings.push(message)),
      });
      if (typeof source === 'string') localStorage.setItem(LAST, source);
      isLoaded = true;
      this.#show('choices');
      this.loaded(model, source, warnings);
    } catch (error) {
      if (this.#abort !== abort) return; // another model was chosen meanwhile
      this.#show('choices');
      const aborted = error instanceof LowbitError && error.code === 'aborted';
      if (!aborted) this.forget();
      say(this.#error, aborted ? '' : error instanceof Error ? error.message : String(error));
    }
  }

  #show(what: 'choices' | 'loading'): void {
    this.#choices.hidden = what === 'loading';
    this.#loading.hidden = what === 'choices';
    say(this.#error, '');
    say(byId('picker-notice'), '');
  }

  #progress(progress: LoadProgress, meter: Meter): void {
    const { phase, loaded, total } = progress;
    if (total > 0 && phase !== 'start') this.#bar.value = loaded / total;
    else this.#bar.removeAttribute('value');
    this.#percent.textContent = total > 0 ? `${Math.floor((100 * loaded) / total)} %` : '';
    this.#detail.textContent = describe(progress, meter.rate(progress));
  }

  #acceptDrops(): void {
    const drop = byId('drop');
    const hasFile = (event: DragEvent) => event.dataTransfer?.types.includes('Files') === true;
    addEventListener('dragenter', (event) => (drop.hidden = !hasFile(event)));
    addEventListener('dragover', (event) => hasFile(event) && event.preventDefault());
    addEventListener('dragleave', (event) => event.relatedTarget === null && (drop.hidden = true));
    addEventListener('drop', (event) => {
      drop.hidden = true;
      if (!hasFile(event)) return;
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      if (file) this.load(file);
    });
  }
}

/** Measures the speed of a download over the last seconds. */
class Meter {
  #samples: { time: number; loaded: number }[] = [];

  /** Bytes a second; 0 while unknown. */
  rate({ phase, loaded }: LoadProgress): number {
    if (phase !== 'download') return 0;
    const time = performance.now();
    this.#samples = [...this.#samples.filter((sample) => time - sample.time < 4000), { time, loaded }];
    const first = this.#samples[0];
    const span = first ? (time - first.time) / 1000 : 0;
    return first && span > 0.3 ? (loaded - first.loaded) / span : 0;
  }
}

function describe({ phase, loaded, total, resumed }: LoadProgress, rate: number): string {
  switch (phase) {
    case 'engine':
      return 'Starting the engine';
    case 'waiting':
      return 'Another tab is downloading this model; waiting for it';
    case 'cache':
      return 'Reading from this browser’s storage';
    case 'start':
      return 'Almost there';
    case 'download': {
      const parts = [total > 0 ? `${bytes(loaded)} of ${bytes(total)}` : bytes(loaded)];
      if (rate > 0) parts.push(`${bytes(rate)}/s`);
      if (rate > 0 && total > loaded) parts.push(`${duration((total - loaded) / rate)} left`);
      if (resumed > 0) parts.push('resumed');
      return parts.join(' · ');
    }
  }
}

function nameOf(source: ModelSource): string {
  if (source === DEFAULT_URL) return 'SmolLM2 135M';
  if (source instanceof File) return source.name;
  return decodeURIComponent(String(source).split('/').pop() ?? '');
}
