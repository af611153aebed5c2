/** A model with the shape of a 30B hybrid, and what its engine might report while it works. */

const PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
const KINDS = { M: "mamba", E: "moe", "*": "attention" };
const SIZES = {
  mamba: {
    parameters: 38_600_000,
    bytes: 21_800_000,
    state_bytes: 2_139_136,
    kv_bytes_per_token: 0,
    experts: 0,
    experts_used: 0,
  },
  moe: {
    parameters: 1_290_000_000,
    bytes: 730_000_000,
    state_bytes: 0,
    kv_bytes_per_token: 0,
    experts: 128,
    experts_used: 6,
  },
  attention: {
    parameters: 24_000_000,
    bytes: 13_500_000,
    state_bytes: 0,
    kv_bytes_per_token: 1024,
    experts: 0,
    experts_used: 0,
  },
};
const LABELS = { mamba: "Mamba-2, 64 heads", moe: "128 experts, 6 used", attention: "Attention, 32 heads" };

const layers = Array.from(PATTERN, (letter, index) => ({
  index,
  kind: KINDS[letter],
  label: LABELS[KINDS[letter]],
  ...SIZES[KINDS[letter]],
}));

export const MODEL = {
  name: "Nemotron-3-Nano-30B-A3B-Q4_0",
  architecture: "nemotron_h_moe",
  parameters: 31_577_000_000,
  file_bytes: 18_100_000_000,
  backend: "cpu (AVX-512, 16 threads)",
  context_tokens: 8192,
  vocabulary: 131_072,
  recommended: { temperature: 1.0, top_p: 1.0 },
  layers,
  memory: {
    weights: 18_100_000_000,
    kv_cache: 402_653_184,
    states: 410_000_000,
    activations: 96_000_000,
    prefix_cache: 1_200_000_000,
  },
  max_sequences: 8,
};

/** The `tick`-th event: busy experts drift slowly. */
export function liveEvent(tick) {
  const experts = {};
  for (const { index, kind } of layers) {
    if (kind !== "moe") continue;
    experts[index] = Array.from({ length: 128 }, (_, expert) => {
      const wave = Math.sin(expert * 0.9 + index * 2.1 + tick * 0.12) * Math.sin(expert * 0.31 + index);
      return Math.max(0, Math.round(30 * wave ** 3));
    });
  }
  return {
    running: 1 + (tick % 3),
    waiting: tick % 2,
    tokens_per_second: 48 + 9 * Math.sin(tick / 3),
    prompt_tokens_per_second: Math.max(0, 420 * Math.sin(tick / 5)),
    cache: {
      bytes: 820_000_000 + tick * 1_000_000,
      budget: 1_200_000_000,
      snapshots: 37 + tick,
      hit_rate: 0.82,
    },
    layers: layers.map(({ index, kind, bytes }) => ({
      index,
      microseconds: { mamba: 210, moe: 520, attention: 140 }[kind] * (1 + 0.1 * Math.sin(index + tick)),
      bytes: kind === "moe" ? Math.round(bytes * 0.055) : bytes,
    })),
    experts,
  };
}
