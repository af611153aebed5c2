/** Numbers as people read them. */

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** `1234` → `1,234`. */
export function count(value) {
  return grouped.format(value);
}

/** `30.1e9` → `30.1 B`; three digits at most. */
export function short(value) {
  const units = ["", "k", "M", "B", "T"];
  return scaled(value, 1000, units);
}

/** Bytes in binary units: `6442450944` → `6.0 GiB`. */
export function bytes(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

function scaled(value, step, units) {
  let unit = 0;
  let left = Number(value) || 0;
  while (left >= step * 0.9995 && unit < units.length - 1) {
    left /= step;
    unit += 1;
  }
  const digits = unit === 0 || left >= 100 ? 0 : 1;
  return `${left.toFixed(digits)} ${units[unit]}`.trim();
}

/** Tokens per second: a decimal only where it matters. */
export function rate(value) {
  return value >= 100 ? count(value) : value.toFixed(1);
}

/** `1 token`, `2 tokens`. */
export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** Milliseconds as `183 ms`, `3.2 s`, `2 min 5 s`. */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** Microseconds as `84 µs` or `1.2 ms`. */
export function microseconds(value) {
  return value < 1000 ? `${Math.round(value)} µs` : `${(value / 1000).toFixed(1)} ms`;
}

export function percent(fraction) {
  const value = fraction * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}
