import type { LoadWarning } from '../types.js';
import { StorageFailure, freeSpace, type State, type Store } from './store.js';

/** Keeps a model as it comes, and goes on without when the storage is full or fails. */
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
    await this.#try(async (store) => {
      if (free !== undefined && free < total) throw new StorageFailure(new DOMException('', 'QuotaExceededError'));
      await store.saveHeader(header);
      await store.saveState(state);
    });
  }

  /** Reads what is kept; whether all of it was there. */
  async read(target: Uint8Array, offset: number): Promise<boolean> {
    return (await this.#try((store) => store.read('data', target, offset))) ?? false;
  }

  /** Writes a verified part of the data; then, if given, what is true once it is written. */
  async write(bytes: Uint8Array, offset: number, state: State | undefined): Promise<void> {
    await this.#try(async (store) => {
      await store.write('data', bytes, offset);
      if (state) await store.saveState(state);
    });
  }

  async save(state: State): Promise<void> {
    await this.#try((store) => store.saveState(state));
  }

  async #try<T>(work: (store: Store) => Promise<T>): Promise<T | undefined> {
    const store = this.store;
    try {
      return store && (await work(store));
    } catch (error) {
      if (!(error instanceof StorageFailure)) throw error;
      this.store = undefined;
      await store?.clear();
      this.warn(error.warning);
      return undefined;
    }
  }
}
