//! The arithmetic of one chunk of the gated delta rule, for one head.
//!
//! With `c` the running sum of g from the chunk's start and S0 the state there:
//! `u_t = β_t·(v_t − exp(c_t)·S0ᵀk_t − Σ_{s < t} exp(c_t − c_s)·(k_s·k_t)·u_s)`,
//! `y_t = exp(c_t)·S0ᵀq_t + Σ_{s ≤ t} exp(c_t − c_s)·(k_s·q_t)·u_s`, s ascending, and at the chunk's end
//! `S1 = exp(c_Q)·S0 + Σ_s exp(c_Q − c_s)·k_s ⊗ u_s`. Lanes are channels; every sum over the state or over positions
//! stays in one lane. Channels are independent of each other, so the triangular system is solved for a few vectors of
//! them at a time. In a [`Chunk`] x is u, B is k, C is q and dt is g.

use mambo_kernel::SSM_CHUNK;

use super::ssm_head::{Chunk, HeadPlace, Next, stored};
use crate::simd::{LANES, Math, Simd, part, part_mut, vectors};
use crate::stored::StoredState;

/// Elements of a matrix over the positions of a chunk.
pub(super) const SQUARE: usize = SSM_CHUNK * SSM_CHUNK;

/// One head of a chunk.
pub(super) struct DeltaHead<'a> {
    pub place: HeadPlace,
    /// Stored state at the chunk's start; `None` for the first chunk, where it is zero.
    pub state: Option<&'a [u8]>,
    /// Running sums of g.
    pub c: [f32; SSM_CHUNK],
    /// β of the new positions.
    pub strengths: [f32; SSM_CHUNK],
}

/// The rows of a chunk's positions, all heads of the item next to each other.
pub(super) struct DeltaRows<'a> {
    /// v of the new positions.
    pub v: [&'a [f32]; SSM_CHUNK],
    /// u of the positions before, and room for the new ones.
    pub u: [&'a mut [f32]; SSM_CHUNK],
    /// Room for the outputs of the new positions.
    pub out: [&'a mut [f32]; SSM_CHUNK],
}

/// Floats of scratch memory of a head: weights of u in u and in y, and what the state gives for k and q.
pub(super) fn head_floats(head_dim: usize) -> usize {
    2 * SQUARE + 2 * SSM_CHUNK * head_dim
}

impl DeltaHead<'_> {
    /// u and outputs of the new positions; `products` are k·k and k·q.
    #[inline(always)]
    pub fn outputs<S: Simd, E: StoredState>(
        &self,
        chunk: &Chunk,
        products: &[f32],
        rows: &mut DeltaRows,
        floats: &mut [f32],
    ) {
        let (weights, carried) = floats.split_at_mut(2 * SQUARE);
        self.weigh::<S>(chunk, products, weights);
        match self.state {
            Some(state) => self.read_state::<S, E>(chunk, state, carried),
            None => carried[..2 * SSM_CHUNK * self.place.head_dim].fill(0.0),
        }
        let mut p = 0;
        while p + 4 * LANES <= self.place.head_dim {
            self.solve::<S, 4>(chunk, p, (weights, carried), rows);
            p += 4 * LANES;
        }
        while p < self.place.head_dim {
            self.solve::<S, 1>(chunk, p, (weights, carried), rows);
            p += LANES;
        }
    }

    /// Weights of earlier u: negative in a later u, then those in an output.
    #[inline(always)]
    fn weigh<S: Simd>(&self, chunk: &Chunk, products: &[f32], weights: &mut [f32]) {
        let (in_u, in_y) = weights.split_at_mut(SQUARE);
        for t in chunk.new..chunk.end {
            let row = t * SSM_CHUNK..(t + 1) * SSM_CHUNK;
            let (of_k, of_q) = (&products[row.clone()], &products[SQUARE..][row.clone()]);
            let (in_u, in_y) = (&mut in_u[row.clone()], &mut in_y[row]);
            for i in 0..=t / LANES {
                let decay = S::exp(S::sub(S::splat(self.c[t]), S::load_part(part(&self.c, i))));
                let minus = S::sub(S::zero(), decay);
                S::store_part(S::mul(minus, S::load_part(part(of_k, i))), part_mut(in_u, i));
                S::store_part(S::mul(decay, S::load_part(part(of_q, i))), part_mut(in_y, i));
            }
        }
    }

    /// `S0ᵀk_t` and `S0ᵀq_t` of the new positions, rows 2t and 2t + 1 of `carried`.
    #[inline(always)]
    fn read_state<S: Simd, E: StoredState>(&self, chunk: &Chunk, state: &[u8], carried: &mut [f32]) {
        let mut p = 0;
        if S::ROWS == 8 && chunk.end - chunk.new == 1 {
            // Registers hold eight vectors of a single position's sums: the state is read as one stream.
            let (t, row) = (chunk.new, 2 * self.place.head_dim);
            while p + 8 * LANES <= self.place.head_dim {
                let by = [chunk.b[t], chunk.c[t]];
                self.read_tile::<S, E, 2, 8>(state, p, by, &mut carried[t * row..(t + 1) * row]);
                p += 8 * LANES;
            }
        }
        while p + 4 * LANES <= self.place.head_dim {
            self.read_channels::<S, E, 4>(chunk, state, p, carried);
            p += 4 * LANES;
        }
        while p < self.place.head_dim {
            self.read_channels::<S, E, 1>(chunk, state, p, carried);
            p += LANES;
        }
    }

    /// Some channels of all new positions: the state's part stays in L1, and two positions share its loads.
    #[inline(always)]
    fn read_channels<S: Simd, E: StoredState, const V: usize>(
        &self,
        chunk: &Chunk,
        state: &[u8],
        p: usize,
        carried: &mut [f32],
    ) {
        let row = 2 * self.place.head_dim;
        let mut t = chunk.new;
        while t + 2 <= chunk.end {
            let by = [chunk.b[t], chunk.c[t], chunk.b[t + 1], chunk.c[t + 1]];
            self.read_tile::<S, E, 4, V>(state, p, by, &mut carried[t * row..(t + 2) * row]);
            t += 2;
        }
        if t < chunk.end {
            let by = [chunk.b[t], chunk.c[t]];
            self.read_tile::<S, E, 2, V>(state, p, by, &mut carried[t * row..(t + 1) * row]);
        }
    }

    #[inline(always)]
    fn read_tile<S: Simd, E: StoredState, const R: usize, const V: usize>(
        &self,
        state: &[u8],
        p: usize,
        by: [&[f32]; R],
        out: &mut [f32],
    ) {
        let size = self.place.head_dim;
        // Only a single vector (V = 1) may be cut short by the end of the head.
        let width = size.min(p + V * LANES) - p;
        let mut acc = [[S::zero(); V]; R];
        for (n, row) in state.chunks_exact(size * E::BYTES).enumerate() {
            let row = &row[p * E::BYTES..(p + width) * E::BYTES];
            for v in 0..V {
                let s = E::load_part::<S>(&row[stored::<E>(v, width)]);
                for i in 0..R {
                    acc[i][v] = S::fma(s, S::splat(by[i][n]), acc[i][v]);
                }
            }
        }
        for i in 0..R {
            let out = &mut out[i * size + p..][..width];
            for v in 0..V {
                S::store_part(acc[i][v], part_mut(out, v));
            }
        }
    }

    /// Some channels of u and of the outputs, position by position.
    #[inline(always)]
    fn solve<S: Simd, const V: usize>(
        &self,
        chunk: &Chunk,
        p: usize,
        (weights, carried): (&[f32], &[f32]),
        rows: &mut DeltaRows,
    ) {
        let size = self.place.head_dim;
        let width = size.min(p + V * LANES) - p;
        let at = self.place.index * size + p;
        let (in_u, in_y) = weights.split_at(SQUARE);
        for t in chunk.new..chunk.end {
            let decay = S::splat(S::exp1(self.c[t]));
            let carried = &carried[2 * t * size + p..];
            let (of_k, of_q) = (&carried[..width], &carried[size..size + width]);
            let v_row = &rows.v[t][at..at + width];
            let (mut u, mut y) = ([S::zero(); V], [S::zero(); V]);
            for v in 0..V {
                u[v] = S::sub(S::load_part(part(v_row, v)), S::mul(decay, S::load_part(part(of_k, v))));
                y[v] = S::mul(decay, S::load_part(part(of_q, v)));
            }
            let row = t * SSM_CHUNK;
            let weights = in_u[row..row + t].iter().zip(&in_y[row..row + t]);
            for (earlier, (of_u, of_y)) in rows.u.iter().zip(weights) {
                let earlier = &earlier[at..at + width];
                for v in 0..V {
                    let x = S::load_part(part(earlier, v));
                    u[v] = S::fma(S::splat(*of_u), x, u[v]);
                    y[v] = S::fma(S::splat(*of_y), x, y[v]);
                }
            }
            let (strength, own) = (S::splat(self.strengths[t]), S::splat(in_y[row + t]));
            let (u_row, out) = (&mut rows.u[t][at..at + width], &mut rows.out[t][at..at + width]);
            for v in 0..V {
                let u = S::mul(strength, u[v]);
                S::store_part(u, part_mut(u_row, v));
                S::store_part(S::fma(own, u, y[v]), part_mut(out, v));
            }
        }
    }

    /// Advances the state from the start of a full chunk, whose u is known, to its end. `scaled` is scratch memory
    /// `[chunk][state]`.
    #[inline(always)]
    pub fn advance<S: Simd, E: StoredState>(
        &self,
        chunk: &Chunk,
        fresh: bool,
        (state, seed): (&mut [u8], u32),
        scaled: &mut [f32],
    ) {
        let last = S::splat(self.c[SSM_CHUNK - 1]);
        let mut steps = [0.0; SSM_CHUNK];
        for i in 0..vectors(SSM_CHUNK) {
            let decay = S::exp(S::sub(last, S::load_part(part(&self.c, i))));
            S::store_part(decay, part_mut(&mut steps, i));
        }
        let next = Next { keep: if fresh { None } else { Some(S::exp(last)) }, seed };
        chunk.next_state::<S, E>(self.place, &steps, next, state, scaled);
    }
}
