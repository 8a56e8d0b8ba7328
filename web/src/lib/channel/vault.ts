/** Where the browser keeps who it is: one record in IndexedDB. */

import type { StoredKeys } from "./dh";

export interface StoredIdentity {
  keys: StoredKeys;
  daemon: Uint8Array;
  deviceId: string;
  name: string;
  checkWords: string[];
}

const TABLE = "identity";
const KEY = "this";

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () =>
      reject(request.error ?? new Error("IndexedDB failed")),
    );
  });
}

export class IdentityVault {
  #name: string;
  #database: Promise<IDBDatabase> | null = null;

  constructor(name: string) {
    this.#name = name;
  }

  async load(): Promise<StoredIdentity | null> {
    const table = await this.#table("readonly");
    return ((await done(table.get(KEY))) as StoredIdentity | undefined) ?? null;
  }

  async save(identity: StoredIdentity): Promise<void> {
    await done((await this.#table("readwrite")).put(identity, KEY));
  }

  async clear(): Promise<void> {
    await done((await this.#table("readwrite")).clear());
  }

  async #table(mode: IDBTransactionMode): Promise<IDBObjectStore> {
    this.#database ??= this.#open();
    return (await this.#database).transaction(TABLE, mode).objectStore(TABLE);
  }

  #open(): Promise<IDBDatabase> {
    const request = indexedDB.open(this.#name, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE);
    return done(request);
  }
}
