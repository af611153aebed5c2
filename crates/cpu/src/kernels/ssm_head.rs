//! The arithmetic of one chunk of the Mamba-2 scan, shared by `ssm_scan` and `ssm_step`; `delta_scan` has its products
//! and its next state from here.
//!
//! With `c` the running sum of `dt·A` from the chunk's start and S0 the state there:
//! `y_t = exp(c_t)·(S0·C_t) + Σ_{s ≤ t} exp(c_t − c_s)·dt_s·(C_t·B_s)·x_s + D·x_t`, s ascending, and at the
//! chunk's end `S1 = exp(c_Q)·S0 + Σ_s exp(c_Q − c_s)·dt_s·B_s ⊗ x_s`. Lanes are channels; every sum over the state or
//! over positions stays in one lane. The state is `[state][head_dim]` per head.

use std::ops::Range;

use mambo_kernel::SSM_CHUNK;

use crate::simd::{LANES, Math, Simd, part, part_mut, vectors};
use crate::stored::StoredState;

/// Vectors of positions in a chunk.
const CHUNK_VECTORS: usize = SSM_CHUNK / LANES;
/// Floats of scratch memory: products C·B, their weights, and B scaled for the state.
pub(super) fn chunk_floats(state: usize) -> usize {
    2 * SSM_CHUNK * SSM_CHUNK + SSM_CHUNK * state
}

/// The part of a chunk known so far, for some heads of one group. Index 0 is the chunk's first position; positions
/// `new..end` are computed now, earlier ones come from the ring.
pub(super) struct Chunk<'a> {
    pub new: usize,
    pub end: usize,
    /// x of the heads, by position.
    pub x: [&'a [f32]; SSM_CHUNK],
    /// B of the group, by position.
    pub b: [&'a [f32]; SSM_CHUNK],
    /// C of the group, by position; only for new positions.
    pub c: [&'a [f32]; SSM_CHUNK],
    /// dt of the heads, by position.
    pub dt: [&'a [f32]; SSM_CHUNK],
}

/// Where a head's channels are in a chunk.
#[derive(Clone, Copy)]
pub(super) struct HeadPlace {
    /// Index among the chunk's heads.
    pub index: usize,
    pub head_dim: usize,
}

/// The parameters of one head.
pub(super) struct Head<'a> {
    pub place: HeadPlace,
    pub a: f32,
    pub d: f32,
    /// Stored state at the chunk's start; `None` for the first chunk, where it is zero.
    pub state: Option<&'a [u8]>,
    /// Bytes from there to the state that the thread reads next, if it is brought into cache meanwhile.
    pub ahead: Option<usize>,
}

/// What all elements of a head's next state share.
#[derive(Clone, Copy)]
pub(super) struct Next<S: Simd> {
    /// Factor on the old state; `None` if that is zero, whatever its memory holds.
    pub keep: Option<S::F>,
    /// Of the random bits of the new state.
    pub seed: u32,
}

impl<'a> Chunk<'a> {
    /// An empty chunk.
    pub fn new(new: usize, end: usize) -> Chunk<'a> {
        Chunk {
            new,
            end,
            x: [&[]; SSM_CHUNK],
            b: [&[]; SSM_CHUNK],
            c: [&[]; SSM_CHUNK],
            dt: [&[]; SSM_CHUNK],
        }
    }

    /// `products[t][s] = rows_t·B_s` for new t and s ≤ t.
    #[inline(always)]
    pub fn products<S: Simd>(&self, rows: &[&[f32]; SSM_CHUNK], products: &mut [f32]) {
        for t in self.new..self.end {
            for s in 0..=t {
                products[t * SSM_CHUNK + s] = S::inner(rows[t], self.b[s]);
            }
        }
    }

    /// Step sizes dt of one head, and the running sums `c`.
    #[inline(always)]
    pub fn decays(&self, index: usize, a: f32) -> ([f32; SSM_CHUNK], [f32; SSM_CHUNK]) {
        let (mut dt, mut c) = ([0.0; SSM_CHUNK], [0.0; SSM_CHUNK]);
        let mut sum = 0.0;
        for s in 0..self.end {
            dt[s] = self.dt[s][index];
            sum += dt[s] * a;
            c[s] = sum;
        }
        (dt, c)
    }

    #[inline(always)]
    fn x(&self, s: usize, place: HeadPlace) -> &'a [f32] {
        &self.x[s][place.index * place.head_dim..(place.index + 1) * place.head_dim]
    }

    /// Outputs of the new positions for one head; `out[t]` holds all heads' channels of position t.
    #[inline(always)]
    pub fn outputs<S: Simd, E: StoredState>(
        &self,
        head: &Head,
        products: &[f32],
        weights: &mut [f32],
        out: &mut [&mut [f32]; SSM_CHUNK],
    ) {
        let (dt, c) = self.decays(head.place.index, head.a);
        let mut carried = [0.0; SSM_CHUNK];
        for i in 0..CHUNK_VECTORS {
            S::store_part(S::exp(S::load_part(part(&c, i))), part_mut(&mut carried, i));
        }
        for t in self.new..self.end {
            let row = t * SSM_CHUNK..(t + 1) * SSM_CHUNK;
            let (products, weights) = (&products[row.clone()], &mut weights[row]);
            for i in 0..=t / LANES {
                let decay = S::exp(S::sub(S::splat(c[t]), S::load_part(part(&c, i))));
                let step = S::mul(decay, S::load_part(part(&dt, i)));
                S::store_part(S::mul(step, S::load_part(part(products, i))), part_mut(weights, i));
            }
        }
        let mut t = self.new;
        while t + 4 <= self.end {
            self.rows::<S, E, 4>(head, t, &carried, weights, out);
            t += 4;
        }
        for t in t..self.end {
            self.rows::<S, E, 1>(head, t, &carried, weights, out);
        }
    }

    /// `T` positions from `t` on: four or five vectors of channels at a time, then one.
    #[inline(always)]
    fn rows<S: Simd, E: StoredState, const T: usize>(
        &self,
        head: &Head,
        t: usize,
        carried: &[f32; SSM_CHUNK],
        weights: &[f32],
        out: &mut [&mut [f32]; SSM_CHUNK],
    ) {
        let mut p = 0;
        while p + 4 * LANES <= head.place.head_dim {
            if p + 5 * LANES == head.place.head_dim {
                return self.tile::<S, E, T, 5>(head, t, p, carried, weights, out);
            }
            self.tile::<S, E, T, 4>(head, t, p, carried, weights, out);
            p += 4 * LANES;
        }
        while p < head.place.head_dim {
            self.tile::<S, E, T, 1>(head, t, p, carried, weights, out);
            p += LANES;
        }
    }

    /// `S0·C_t` of `T` positions. What lies `ahead` of the state is prefetched line by line, because a core has few
    /// outstanding cache misses.
    #[inline(always)]
    fn carried<S: Simd, E: StoredState, const T: usize, const V: usize, const PREFETCH: bool>(
        &self,
        head: &Head,
        (t, p, width): (usize, usize, usize),
        ahead: usize,
    ) -> [[S::F; V]; T] {
        let mut acc = [[S::zero(); V]; T];
        let Some(state) = head.state else { return acc };
        let c: [&[f32]; T] = std::array::from_fn(|i| self.c[t + i]);
        for (n, row) in state.chunks_exact(head.place.head_dim * E::BYTES).enumerate() {
            let row = &row[p * E::BYTES..(p + width) * E::BYTES];
            for v in 0..V {
                let s = E::load_part::<S>(&row[stored::<E>(v, width)]);
                if PREFETCH {
                    S::prefetch(&row[v * LANES * E::BYTES..], ahead);
                }
                for i in 0..T {
                    acc[i][v] = S::fma(s, S::splat(c[i][n]), acc[i][v]);
                }
            }
        }
        acc
    }

    #[inline(always)]
    fn tile<S: Simd, E: StoredState, const T: usize, const V: usize>(
        &self,
        head: &Head,
        t: usize,
        p: usize,
        carried: &[f32; SSM_CHUNK],
        weights: &[f32],
        out: &mut [&mut [f32]; SSM_CHUNK],
    ) {
        // Only a single vector (V = 1) may be cut short by the end of the head.
        let width = head.place.head_dim.min(p + V * LANES) - p;
        // Many sequences have one position each, and their states do not fit into cache.
        let acc = match head.ahead.filter(|_| T == 1) {
            Some(ahead) => self.carried::<S, E, T, V, true>(head, (t, p, width), ahead),
            None => self.carried::<S, E, T, V, false>(head, (t, p, width), 0),
        };
        for i in 0..T {
            let t = t + i;
            let carried = S::splat(carried[t]);
            let mut y = acc[i];
            for y in &mut y {
                *y = S::mul(*y, carried);
            }
            for s in 0..=t {
                let weight = S::splat(weights[t * SSM_CHUNK + s]);
                let x = &self.x(s, head.place)[p..p + width];
                for v in 0..V {
                    y[v] = S::fma(weight, S::load_part(part(x, v)), y[v]);
                }
            }
            let (x, d) = (&self.x(t, head.place)[p..p + width], S::splat(head.d));
            let start = head.place.index * head.place.head_dim + p;
            let out = &mut out[t][start..start + width];
            for v in 0..V {
                S::store_part(S::fma(d, S::load_part(part(x, v)), y[v]), part_mut(out, v));
            }
        }
    }

    /// Advances one head's state from the start of this full chunk to its end. `fresh` means that the old state is
    /// zero, whatever `state` holds; `seed` is for the random bits of the new one.
    #[inline(always)]
    pub fn advance<S: Simd, E: StoredState>(
        &self,
        head: &Head,
        fresh: bool,
        seed: u32,
        state: &mut [u8],
        scaled: &mut [f32],
    ) {
        debug_assert_eq!(self.end, SSM_CHUNK);
        let (dt, c) = self.decays(head.place.index, head.a);
        let last = S::splat(c[SSM_CHUNK - 1]);
        let mut steps = [0.0; SSM_CHUNK];
        for i in 0..CHUNK_VECTORS {
            let decay = S::exp(S::sub(last, S::load_part(part(&c, i))));
            S::store_part(S::mul(decay, S::load_part(part(&dt, i))), part_mut(&mut steps, i));
        }
        let next = Next { keep: if fresh { None } else { Some(S::exp(last)) }, seed };
        self.next_state::<S, E>(head.place, &steps, next, state, scaled);
    }

    /// `keep·S0 + Σ_s steps_s·B_s ⊗ x_s` of a full chunk, in the place of S0. `scaled` is scratch memory
    /// `[chunk][state]`.
    #[inline(always)]
    pub fn next_state<S: Simd, E: StoredState>(
        &self,
        place: HeadPlace,
        steps: &[f32; SSM_CHUNK],
        next: Next<S>,
        state: &mut [u8],
        scaled: &mut [f32],
    ) {
        let size = self.b[0].len();
        for (s, scaled) in scaled.chunks_exact_mut(size).enumerate() {
            let step = S::splat(steps[s]);
            for i in 0..vectors(size) {
                S::store_part(S::mul(step, S::load_part(part(self.b[s], i))), part_mut(scaled, i));
            }
        }
        let mut n = 0;
        while n + 4 <= size {
            self.advance_rows::<S, E, 4>(place, n, next, state, scaled);
            n += 4;
        }
        for n in n..size {
            self.advance_rows::<S, E, 1>(place, n, next, state, scaled);
        }
    }

    #[inline(always)]
    fn advance_rows<S: Simd, E: StoredState, const N: usize>(
        &self,
        place: HeadPlace,
        n: usize,
        next: Next<S>,
        state: &mut [u8],
        scaled: &[f32],
    ) {
        let mut p = 0;
        while p + 4 * LANES <= place.head_dim {
            if p + 5 * LANES == place.head_dim {
                return self.advance_tile::<S, E, N, 5>(place, (n, p), next, state, scaled);
            }
            self.advance_tile::<S, E, N, 4>(place, (n, p), next, state, scaled);
            p += 4 * LANES;
        }
        while p < place.head_dim {
            self.advance_tile::<S, E, N, 1>(place, (n, p), next, state, scaled);
            p += LANES;
        }
    }

    #[inline(always)]
    fn advance_tile<S: Simd, E: StoredState, const N: usize, const V: usize>(
        &self,
        place: HeadPlace,
        (n, p): (usize, usize),
        next: Next<S>,
        state: &mut [u8],
        scaled: &[f32],
    ) {
        let width = place.head_dim.min(p + V * LANES) - p;
        let size = self.b[0].len();
        let mut acc = [[S::zero(); V]; N];
        let offset = |i: usize| (n + i) * place.head_dim + p;
        if let Some(keep) = next.keep {
            for i in 0..N {
                let row = &state[offset(i) * E::BYTES..][..width * E::BYTES];
                for v in 0..V {
                    acc[i][v] = S::mul(keep, E::load_part::<S>(&row[stored::<E>(v, width)]));
                }
            }
        }
        for s in 0..SSM_CHUNK {
            let x = &self.x(s, place)[p..p + width];
            let b = &scaled[s * size + n..][..N];
            for v in 0..V {
                let x = S::load_part(part(x, v));
                for i in 0..N {
                    acc[i][v] = S::fma(S::splat(b[i]), x, acc[i][v]);
                }
            }
        }
        for i in 0..N {
            let row = &mut state[offset(i) * E::BYTES..][..width * E::BYTES];
            for v in 0..V {
                E::store::<S>(acc[i][v], next.seed, offset(i) + v * LANES, &mut row[stored::<E>(v, width)]);
            }
        }
    }
}

/// Byte range of vector `v` of `width` stored values.
#[inline(always)]
pub(super) fn stored<E: StoredState>(v: usize, width: usize) -> Range<usize> {
    v * LANES * E::BYTES..width.min((v + 1) * LANES) * E::BYTES
}
