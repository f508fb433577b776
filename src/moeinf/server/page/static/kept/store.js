// Conversations are kept in this browser alone, in its IndexedDB, which holds pictures too (localStorage has 5 MB).
// Nothing of them is sent anywhere. Where a browser keeps nothing, as some do in private windows, they last until the
// tab is closed.

const [DATABASE, STORE, LISTED] = ["moeinf", "conversations", "listed"];
const others = new BroadcastChannel("moeinf-conversations"); // tabs of this browser
let opened;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => {
      const store = request.result.createObjectStore(STORE, { keyPath: "id" });
      store.createIndex(LISTED, ["changed", "title"]); // so that listing reads no conversation
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/** What `use(store)` returns a request for, once its transaction has ended. */
async function within(mode, use) {
  const transaction = (await database()).transaction(STORE, mode);
  const request = use(transaction.objectStore(STORE));
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
  return request?.result;
}

/** Calls see(cursor) for each conversation, the one changed last first. */
function eachOf(source, open, see) {
  const request = source[open](null, "prev");
  request.onsuccess = () => {
    if (!request.result) return;
    see(request.result);
    request.result.continue();
  };
}

/** Whether this browser keeps conversations at all. */
export function keeps() {
  return database().then(
    () => true,
    () => false,
  );
}

/** { id, title } of all, the one changed last first. */
export async function listed() {
  const found = [];
  await within("readonly", (store) =>
    eachOf(store.index(LISTED), "openKeyCursor", ({ key, primaryKey }) =>
      found.push({ id: primaryKey, title: key[1] }),
    ),
  );
  return found;
}

/** The same of those in whose title or messages all these words stand, in whatever case. */
export async function found(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  await within("readonly", (store) =>
    eachOf(store.index(LISTED), "openCursor", ({ value: { id, title, nodes } }) => {
      const text = [title, ...nodes.map(({ content }) => content)].join("\n").toLowerCase();
      if (wanted.every((word) => text.includes(word))) found.push({ id, title });
    }),
  );
  return found;
}

/** The record of a conversation; undefined where it is not there. */
export function read(id) {
  return within("readonly", (store) => store.get(id));
}

export function readAll() {
  return within("readonly", (store) => store.getAll());
}

/** Writes a record. What another tab has added to the same conversation stays. */
export async function write(record) {
  await within("readwrite", (store) => {
    const request = store.get(record.id);
    request.onsuccess = () => {
      const known = new Set(record.nodes.map(({ id }) => id));
      const added = (request.result?.nodes ?? []).filter(({ id }) => !known.has(id));
      store.put({ ...record, nodes: [...record.nodes, ...added] });
    };
  });
  others.postMessage(record.id);
}

export async function remove(id) {
  await within("readwrite", (store) => void store.delete(id));
  others.postMessage(id);
}

/** Calls told(id) when another tab has written or removed a conversation. */
export function onOthers(told) {
  others.onmessage = ({ data }) => told(data);
}
