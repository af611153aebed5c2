/**
 * The model in this tab: which one, how far it is loaded, and a new one in its place.
 * Events: `progress` (how far), `change` (another model answers now), `problem` (it could not be loaded).
 */

import { load } from "./mambo/index.js";

const KEY = "mambo-tab-model";
const BACKEND_KEY = "mambo-tab-backend";
/** What may compute, by what `load` calls it. */
export const BACKENDS = { auto: "the graphics card if there is one", webgpu: "WebGPU", cpu: "the processor" };

/** The trained model that comes with the page. */
export const BUILT_IN = { name: "tiny-hybrid", address: new URL("tiny-hybrid.gguf", document.baseURI).href };

function remembered() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? BUILT_IN;
  } catch {
    return BUILT_IN;
  }
}

function rememberedBackend() {
  try {
    const backend = localStorage.getItem(BACKEND_KEY);
    return backend in BACKENDS ? backend : "auto";
  } catch {
    return "auto";
  }
}

class TabEngine extends EventTarget {
  /** The loaded model, or null. */
  model = null;
  /** What is or was loaded last: an address, or files that only this visit knows. */
  choice = remembered();
  /** What is to compute; `model.view.backend` says what does. */
  backend = rememberedBackend();
  progress = { fetched: 0, cached: 0, loaded: 0, total: 0 };
  notes = [];
  problem = "";
  /** When loading began, how long it took, and how long the first answer token took after. */
  times = { begun: 0, loadedMs: null };
  #ready = null;
  #controller = null;

  /** The model, once it is loaded. */
  ready() {
    this.#ready ??= this.#load();
    return this.#ready;
  }

  /** Loads another model: `{ name, address }` or `{ name, files }`. */
  use(choice) {
    this.#controller?.abort();
    this.model?.close();
    this.model = null;
    this.choice = choice;
    try {
      if (choice.address) localStorage.setItem(KEY, JSON.stringify(choice));
    } catch {
      // Storage is forbidden here: the next visit begins with the built-in model.
    }
    this.#ready = this.#load();
    return this.#ready;
  }

  /** Loads the same model again, for another backend. */
  runOn(backend) {
    this.backend = backend;
    try {
      localStorage.setItem(BACKEND_KEY, backend);
    } catch {
      // The next visit chooses by itself.
    }
    return this.use(this.choice);
  }

  /** The model is gone with its graphics card: the next question loads it again. */
  #lost(reason) {
    this.model = null;
    this.#ready = null;
    this.problem = `${reason[0].toUpperCase()}${reason.slice(1)}. The next question does so.`;
    this.#tell("problem");
  }

  async #load() {
    const controller = (this.#controller = new AbortController());
    const { address, files, options = {} } = this.choice;
    this.notes = [];
    this.problem = "";
    this.times = { begun: performance.now(), loadedMs: null };
    this.progress = { fetched: 0, cached: 0, loaded: 0, total: 0 };
    this.#tell("progress");
    // Large files are worth asking the browser to keep; it may ask its user in turn.
    if (address && address !== BUILT_IN.address) navigator.storage?.persist?.().catch(() => {});
    try {
      const model = await load(address ?? files, {
        backend: this.backend,
        ...options,
        signal: controller.signal,
        onProgress: (progress) => {
          this.progress = progress;
          this.#tell("progress");
        },
        onNote: (note) => this.notes.push(note),
        onLost: (reason) => this.#controller === controller && this.#lost(reason),
      });
      this.model = model;
      this.times.loadedMs = performance.now() - this.times.begun;
      this.#tell("change");
      return model;
    } catch (error) {
      if (!controller.signal.aborted) {
        this.problem = error.message;
        this.#ready = null;
        this.#tell("problem");
      }
      throw error;
    }
  }

  #tell(type) {
    this.dispatchEvent(new Event(type));
  }
}

export const engine = new TabEngine();
