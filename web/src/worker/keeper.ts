import type { LoadWarning } from '../types.js';
import { freeSpace, isQuota, type State, type Store } from './store.js';

/** Keeps a model as it comes, and goes on without when the storage is full. */
export class Keeper {
  constructor(
    private store: Store | undefined,
    private readonly warn: (warning: LoadWarning) => void,
  ) {}

  get keeps(): boolean {
    return this.store !== undefined;
  }

  /** Starts anew with a header, if there is room for `total` bytes. */
  async begin(header: Uint8Array<ArrayBuffer>, state: State, total: number): Promise<void> {
    if (!this.store) return;
    await this.store.clear();
    const free = await freeSpace();
    if (free !== undefined && free < total) return this.#giveUp();
    await this.#try(async (store) => {
      await store.saveHeader(header);
      await store.saveState(state);
    });
  }

  async read(target: Uint8Array, offset: number): Promise<boolean> {
    return (await this.store?.read('data', target, offset)) ?? false;
  }

  /** Writes a verified part of the data; then, if given, what is true once it is written. */
  write(bytes: Uint8Array, offset: number, state: State | undefined): Promise<void> {
    return this.#try(async (store) => {
      await store.write('data', bytes, offset);
      if (state) await store.saveState(state);
    });
  }

  save(state: State): Promise<void> {
    return this.#try((store) => store.saveState(state));
  }

  async #try(work: (store: Store) => Promise<void>): Promise<void> {
    if (!this.store) return;
    try {
      await work(this.store);
    } catch (error) {
      if (!isQuota(error)) throw error;
      await this.#giveUp();
    }
  }

  async #giveUp(): Promise<void> {
    const store = this.store;
    this.store = undefined;
    await store?.clear();
    this.warn({
      code: 'storage-quota',
      message: 'too little storage is free in this browser: the model runs from memory and is fetched again next time',
    });
  }
}
