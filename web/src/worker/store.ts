import { abortError } from '../errors.js';
import type { LoadWarning } from '../types.js';

/** The large files of a kept model: the packed weights, or a GGUF file that is still arriving. */
export type LargeFile = 'data' | 'source';

/** What is known about a kept model. It is complete only when every chunk has been verified. */
export interface State {
  url: string;
  /** Size and version of the file on the server, to notice that it has changed. */
  sourceSize: number;
  sourceVersion: string;
  /** Chunks of the data that were verified and written. */
  chunks: number;
  complete: boolean;
  /** Bytes of header and data, when complete. */
  bytes: number;
}

/** What an interrupted download has left. */
export interface Begun {
  state: State;
  /** Of an artifact, with at least one chunk. */
  header: Uint8Array<ArrayBuffer> | undefined;
  /** Bytes of a GGUF file. */
  received: number;
}

type Handle = FileSystemSyncAccessHandle;

/**
 * One model in the browser's origin-private file system: `header`, `data`, `state.json` in a folder of its own, which is
 * there once something has been written. When something cannot be read or written, methods fail with
 * {@link StorageFailure}: no reason not to run the model.
 */
export class Store {
  readonly #open = new Map<LargeFile, Handle>();

  private constructor(
    private readonly root: FileSystemDirectoryHandle,
    private readonly name: string,
  ) {}

  /** The store of `url`; `undefined` when the browser grants no storage. The caller holds the lock of `url`. */
  static async open(url: string): Promise<Store | undefined> {
    try {
      const root = await modelsFolder(true);
      return root && new Store(root, await keyOf(url));
    } catch {
      return undefined;
    }
  }

  /** The state as last saved; `undefined` when there is none or it does not make sense. */
  async state(): Promise<State | undefined> {
    try {
      const state = JSON.parse(new TextDecoder().decode(await this.#readSmall('state.json'))) as State;
      return Number.isInteger(state.chunks) && typeof state.complete === 'boolean' ? state : undefined;
    } catch {
      return undefined;
    }
  }

  /** What an interrupted download has left that a later one can go on from. */
  async begun(): Promise<Begun | undefined> {
    const state = await this.state();
    if (!state || state.complete) return undefined;
    const received = await this.size('source');
    const header = state.chunks > 0 ? await this.header().catch(() => undefined) : undefined;
    return header || received > 0 ? { state, header, received } : undefined;
  }

  /** Saves the state. What it speaks of must have been flushed. */
  saveState(state: State): Promise<void> {
    return storing(async () => {
      for (const handle of this.#open.values()) handle.flush();
      await this.#writeSmall('state.json', new TextEncoder().encode(JSON.stringify(state)));
    });
  }

  header(): Promise<Uint8Array<ArrayBuffer>> {
    return this.#readSmall('header');
  }

  saveHeader(header: Uint8Array<ArrayBuffer>): Promise<void> {
    return storing(() => this.#writeSmall('header', header));
  }

  /** Bytes of a file that are there. */
  size(file: LargeFile): Promise<number> {
    return storing(async () => (await this.#handle(file, false))?.getSize() ?? 0);
  }

  /** Reads at `offset` into `target` and returns whether all of it was there. */
  read(file: LargeFile, target: Uint8Array, offset: number): Promise<boolean> {
    return storing(async () => {
      const handle = await this.#handle(file, false);
      return handle?.read(target as Uint8Array<ArrayBuffer>, { at: offset }) === target.length;
    });
  }

  write(file: LargeFile, bytes: Uint8Array, offset: number): Promise<void> {
    return storing(async () => {
      const handle = await this.#handle(file, true);
      const written = handle?.write(bytes as Uint8Array<ArrayBuffer>, { at: offset });
      // Some browsers write less instead of throwing when the quota is used up.
      if (written !== bytes.length) throw new DOMException('short write', 'QuotaExceededError');
    });
  }

  /** Closes all files; the store may be used again. */
  close(): void {
    for (const handle of this.#open.values()) handle.close();
    this.#open.clear();
  }

  /** Ends the work on a model: closes all files, and deletes what is neither whole nor can be gone on from. */
  async end(): Promise<void> {
    const complete = (await this.state())?.complete ?? false;
    const begun = complete || (await this.begun().catch(() => undefined));
    if (begun) this.close();
    else await this.clear();
  }

  /** Deletes what is kept, and the folder. */
  async clear(): Promise<void> {
    this.close();
    const folder = await this.#folder(false).catch(() => undefined);
    // The state goes first: should the tab end in between, what is left of the others is of no model.
    for (const name of ['state.json', 'header', 'data', 'source']) {
      await folder?.removeEntry(name).catch(() => undefined);
    }
    await this.root.removeEntry(this.name).catch(() => undefined);
  }

  /** An open file; `undefined` when it is not there and is not to be made. */
  async #handle(file: LargeFile, create: boolean): Promise<Handle | undefined> {
    const open = this.#open.get(file);
    if (open) return open;
    try {
      const handle = await openSync(await this.#folder(create), file, create);
      this.#open.set(file, handle);
      return handle;
    } catch (error) {
      if (!create && isMissing(error)) return undefined;
      throw error;
    }
  }

  #folder(create: boolean): Promise<FileSystemDirectoryHandle> {
    return this.root.getDirectoryHandle(this.name, { create });
  }

  async #readSmall(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const file = await (await (await this.#folder(false)).getFileHandle(name)).getFile();
    return new Uint8Array(await file.arrayBuffer());
  }

  async #writeSmall(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    await writeFile(await this.#folder(true), name, bytes);
  }
}

/** Where small texts are kept beside the models. They are nothing that anybody asked to keep: all are forgotten together. */
const NOTES = 'notes';

/** The text that was kept under this name in the browser; nothing when there is none or it cannot be read. */
export async function readNote(name: string): Promise<string | undefined> {
  try {
    const folder = await (await modelsFolder(false))?.getDirectoryHandle(NOTES);
    return await (await folder?.getFileHandle(`${name}.json`))?.getFile().then((file) => file.text());
  } catch {
    return undefined;
  }
}

/** Keeps a text, if the browser has a place for it. */
export async function writeNote(name: string, text: string): Promise<void> {
  try {
    const folder = await (await modelsFolder(true))?.getDirectoryHandle(NOTES, { create: true });
    if (folder) await writeFile(folder, `${name}.json`, new TextEncoder().encode(text));
  } catch {
    // It is measured again.
  }
}

/** The storage refuses: it is full, another page has cleared it, the disk is broken. */
export class StorageFailure extends Error {
  /** What the user should know. */
  readonly warning: LoadWarning;

  constructor(cause: unknown) {
    super(String(cause), { cause });
    const full = cause instanceof DOMException && cause.name === 'QuotaExceededError';
    this.warning = full
      ? { code: 'storage-quota', message: 'too little storage is free in this browser: the model is fetched again next time' }
      : { code: 'storage-unavailable', message: `the browser's storage fails (${this.message}): the model is fetched again next time` };
  }
}

async function storing<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (cause) {
    throw new StorageFailure(cause);
  }
}

/** Bytes that may still be stored; `undefined` when the browser does not say. */
export async function freeSpace(): Promise<number | undefined> {
  const { quota, usage } = (await navigator.storage?.estimate?.().catch(() => undefined)) ?? {};
  return quota === undefined || usage === undefined ? undefined : quota - usage;
}

/** Runs `work` while no other tab works on `url`. `onWait` is called when another one does. */
export async function exclusively<T>(
  url: string,
  signal: AbortSignal,
  onWait: () => void,
  work: () => Promise<T>,
): Promise<T> {
  if (!navigator.locks) return work();
  const name = `lowbit:${url}`;
  const first = await navigator.locks.request(name, { ifAvailable: true }, async (lock) =>
    lock ? { value: await work() } : undefined,
  );
  if (first) return first.value;
  onWait();
  let begun = false;
  try {
    return await navigator.locks.request(name, { signal }, () => {
      begun = true;
      return work();
    });
  } catch (error) {
    throw signal.aborted && !begun ? abortError(signal) : error;
  }
}

/** Deletes the kept model of `url`, or all of them. Returns how many there were, interrupted downloads included. */
export async function forget(url?: string): Promise<number> {
  const root = await modelsFolder(false).catch(() => undefined);
  if (!root) return 0;
  const names: string[] = [];
  if (url === undefined) for await (const name of root.keys()) names.push(name);
  else names.push(await keyOf(url));
  let count = 0;
  for (const name of names) {
    const model = await isModel(root, name);
    await root.removeEntry(name, { recursive: true }).then(
      () => (count += model ? 1 : 0),
      () => undefined, // not there, or in use by another tab
    );
  }
  return count;
}

/** Whether a folder is that of a model; a tab that was closed may have left one without. */
async function isModel(root: FileSystemDirectoryHandle, name: string): Promise<boolean> {
  const state = root.getDirectoryHandle(name).then((folder) => folder.getFileHandle('state.json'));
  return state.then(
    () => true,
    () => false,
  );
}

function isMissing(error: unknown): boolean {
  return error instanceof DOMException && error.name === 'NotFoundError';
}

async function modelsFolder(create: boolean): Promise<FileSystemDirectoryHandle | undefined> {
  const root = await navigator.storage?.getDirectory?.();
  return root?.getDirectoryHandle('lowbit', { create });
}

/** Replaces a small file. */
async function writeFile(folder: FileSystemDirectoryHandle, name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
  const handle = await openSync(folder, name, true);
  try {
    handle.truncate(0);
    if (handle.write(bytes, { at: 0 }) !== bytes.length) throw new DOMException('short write', 'QuotaExceededError');
    handle.flush();
  } finally {
    handle.close();
  }
}

/** Another tab's handle may be about to close: a few tries. */
async function openSync(folder: FileSystemDirectoryHandle, name: string, create: boolean): Promise<Handle> {
  const file = await folder.getFileHandle(name, { create });
  for (let attempt = 0; ; attempt++) {
    try {
      return await file.createSyncAccessHandle();
    } catch (cause) {
      if (attempt === 20) throw cause;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

/** A file name for `url`. Where there is storage, there is WebCrypto. */
async function keyOf(url: string): Promise<string> {
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(url));
  return Array.from(new Uint8Array(digest, 0, 16), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
