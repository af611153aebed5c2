/** Where this runs, and the few things that differ: Node has no `Worker` of the web and no storage of its own. */

export const isNode =
  typeof process !== "undefined" &&
  process.versions?.node !== undefined &&
  typeof (globalThis as any).WorkerGlobalScope === "undefined" &&
  typeof (globalThis as any).document === "undefined";

/** Node's modules by names that bundlers do not follow. */
export const nodeModule = (name: string): Promise<any> => import(/* @vite-ignore */ /* webpackIgnore: true */ `node:${name}`);

/** A port to a worker, the same in both worlds. */
export interface Port {
  post(message: unknown, transfer?: Transferable[]): void;
  listen(heard: (message: any) => void): void;
  /** Told when the other side ends or cannot be started. */
  fails(failed: (reason: string) => void): void;
  close(): void;
}

/** Starts the worker of this package. */
export async function startWorker(): Promise<Port> {
  if (isNode) {
    const { Worker } = await nodeModule("worker_threads");
    const worker = new Worker(new URL("./worker.js", import.meta.url));
    return {
      post: (message, transfer) => worker.postMessage(message, transfer ?? []),
      listen: (heard) => worker.on("message", heard),
      fails: (failed) => worker.on("error", (error: Error) => failed(error.message)),
      close: () => void worker.terminate(),
    };
  }
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  return {
    post: (message, transfer) => worker.postMessage(message, transfer ?? []),
    listen: (heard) => worker.addEventListener("message", (event) => heard(event.data)),
    fails: (failed) =>
      worker.addEventListener("error", (event) => failed(event.message || "the worker's script cannot be loaded")),
    close: () => worker.terminate(),
  };
}

/** The port of the worker itself to the page. */
export async function ownPort(): Promise<Pick<Port, "post" | "listen">> {
  if (isNode) {
    const { parentPort } = await nodeModule("worker_threads");
    return {
      post: (message, transfer) => parentPort.postMessage(message, transfer ?? []),
      listen: (heard) => parentPort.on("message", heard),
    };
  }
  return {
    post: (message, transfer) => (self as any).postMessage(message, transfer ?? []),
    listen: (heard) => self.addEventListener("message", (event) => heard((event as MessageEvent).data)),
  };
}

/** Lets whatever waits have its turn: messages, and what a device has to say. */
export function makeTurn(): () => Promise<void> {
  if (isNode) return () => new Promise((resolve) => setImmediate(resolve));
  const { port1, port2 } = new MessageChannel();
  let next: (() => void) | null = null;
  port1.onmessage = () => next?.();
  return () =>
    new Promise((resolve) => {
      next = resolve;
      port2.postMessage(0);
    });
}
