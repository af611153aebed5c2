/** Reads small safetensors files: a length, a JSON header, the bytes. */

import { readFileSync } from "node:fs";

const TYPES = { F32: Float32Array, I32: Int32Array, U32: Uint32Array, I64: BigInt64Array };

export function readSafetensors(path) {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString());
  delete header.__metadata__;
  const values = ({ dtype, data_offsets: [start, end] }) =>
    new TYPES[dtype](Uint8Array.prototype.slice.call(bytes, 8 + length + start, 8 + length + end).buffer);
  return Object.fromEntries(Object.entries(header).map(([name, about]) => [name, values(about)]));
}
