/**
 * What this browser keeps for reading offline, sealed.
 *
 * Everything is encrypted with a key that no script can export; the key and the ciphertext are in
 * IndexedDB. Where the platform has no WebCrypto (plain http) nothing is kept at all: there is no
 * service worker to read it with either.
 */

const DATABASE = "quintet-vault";
const KEY = "key";

interface Sealed {
  iv: Uint8Array<ArrayBuffer>;
  data: ArrayBuffer;
}

export class Vault {
  #database: IDBDatabase;
  #key: CryptoKey;
  /** Counts the times that everything was removed. */
  #cleared = 0;

  private constructor(database: IDBDatabase, key: CryptoKey) {
    this.#database = database;
    this.#key = key;
  }

  /** Opens the vault; null where this browser can't keep anything safely. */
  static async open(name = DATABASE): Promise<Vault | null> {
    if (globalThis.crypto?.subtle === undefined || globalThis.indexedDB === undefined) return null;
    try {
      const database = await openDatabase(name);
      return new Vault(database, await loadKey(database));
    } catch {
      // Private windows and full disks refuse storage: the page works without.
      return null;
    }
  }

  async get(name: string): Promise<unknown> {
    try {
      const sealed = await run<Sealed | undefined>(this.#database, "sealed", "readonly", (store) =>
        store.get(name),
      );
      if (sealed === undefined) return undefined;
      const plain = await crypto.subtle.decrypt(params(sealed.iv, name), this.#key, sealed.data);
      return JSON.parse(new TextDecoder().decode(plain));
    } catch {
      return undefined;
    }
  }

  async put(name: string, value: unknown): Promise<void> {
    const cleared = this.#cleared;
    const plain = new TextEncoder().encode(JSON.stringify(value));
    const iv = crypto.getRandomValues(new Uint8Array(12));
    const data = await crypto.subtle.encrypt(params(iv, name), this.#key, plain);
    // Emptied meanwhile: it would be the one thing that is left.
    if (cleared !== this.#cleared) return;
    await run(this.#database, "sealed", "readwrite", (store) => store.put({ iv, data }, name));
  }

  async delete(name: string): Promise<void> {
    await run(this.#database, "sealed", "readwrite", (store) => store.delete(name));
  }

  /** Removes everything and the key with it: what a backup still holds can't be read. */
  async clear(): Promise<void> {
    this.#cleared += 1;
    const key = await newKey();
    await new Promise<void>((resolve, reject) => {
      const both = this.#database.transaction(["keys", "sealed"], "readwrite");
      both.objectStore("sealed").clear();
      both.objectStore("keys").put(key, KEY);
      both.addEventListener("complete", () => resolve());
      both.addEventListener("abort", () => reject(both.error));
    });
    this.#key = key;
  }

  close(): void {
    this.#database.close();
  }
}

/** The name is authenticated with the text: entries can't be swapped for one another. */
function params(iv: Uint8Array<ArrayBuffer>, name: string): AesGcmParams {
  return { name: "AES-GCM", iv, additionalData: new TextEncoder().encode(name) };
}

async function loadKey(database: IDBDatabase): Promise<CryptoKey> {
  const found = await run<CryptoKey | undefined>(database, "keys", "readonly", (store) =>
    store.get(KEY),
  );
  if (found !== undefined) return found;
  const made = await newKey();
  await run(database, "keys", "readwrite", (store) => store.put(made, KEY));
  return made;
}

function newKey(): Promise<CryptoKey> {
  const usages: KeyUsage[] = ["encrypt", "decrypt"];
  return crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, usages);
}

function openDatabase(name: string): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, 1);
    request.addEventListener("upgradeneeded", () => {
      request.result.createObjectStore("keys");
      request.result.createObjectStore("sealed");
    });
    request.addEventListener("success", () => resolve(request.result));
    request.addEventListener("error", () => reject(request.error));
    request.addEventListener("blocked", () => reject(new Error("the database is in use")));
  });
}

function run<T>(
  database: IDBDatabase,
  name: "keys" | "sealed",
  mode: IDBTransactionMode,
  act: (store: IDBObjectStore) => IDBRequest,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const request = act(database.transaction(name, mode).objectStore(name));
    request.addEventListener("success", () => resolve(request.result as T));
    request.addEventListener("error", () => reject(request.error));
  });
}
