/** Moves the tensors of a GGUF file further back, as they lie in large files. */

const SCALARS = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const STRING = 8;
const ARRAY = 9;

/**
 * @param {Buffer} bytes a GGUF file
 * @param {number} shift bytes, a multiple of the alignment
 * @returns {{head: Buffer, dataStart: number, bytes: Buffer}} a header whose offsets are larger by `shift`
 */
export function shifted(bytes, shift) {
  let at = 8;
  let alignment = 32;
  const u64 = () => Number(bytes.readBigUInt64LE((at += 8) - 8));
  const u32 = () => bytes.readUInt32LE((at += 4) - 4);
  const text = () => {
    const length = u64();
    return bytes.toString("utf8", at, (at += length));
  };
  const skip = (type) => {
    if (type === STRING) text();
    else if (type === ARRAY) {
      const [inner, count] = [u32(), u64()];
      for (let index = 0; index < count; index += 1) skip(inner);
    } else at += SCALARS[type];
  };
  const [tensors, entries] = [u64(), u64()];
  for (let index = 0; index < entries; index += 1) {
    const key = text();
    const type = u32();
    if (key === "general.alignment") alignment = bytes.readUInt32LE(at);
    skip(type);
  }
  const offsets = [];
  for (let index = 0; index < tensors; index += 1) {
    text();
    const rank = u32();
    at += 8 * rank + 4;
    offsets.push(at);
    at += 8;
  }
  const dataStart = Math.ceil(at / alignment) * alignment;
  const head = Buffer.from(bytes.subarray(0, dataStart));
  for (const offset of offsets) head.writeBigUInt64LE(head.readBigUInt64LE(offset) + BigInt(shift), offset);
  return { head, dataStart, bytes };
}
