//! Products of bf16 with tile registers (AMX).
//!
//! One instruction multiplies sixteen rows of activations with 32 columns of a panel: 8,192 products. Unpacked panels,
//! rows and sums already have the layout that tiles are loaded from.
#![allow(unsafe_code)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "only x86-64 has tiles")
)]

#[cfg(target_arch = "x86_64")]
use std::arch::asm;

use super::format::PANEL_ROWS;
use super::pair_sums::TwoParts;

/// Rows of activations in a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of a row of a tile.
const ROW_BYTES: usize = 64;
/// Bytes of a tile.
const TILE_BYTES: usize = TILE_ROWS * ROW_BYTES;

/// Shapes of the tile registers: all have full size.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const SHAPES: Shapes = Shapes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Tile registers, configured as long as this value lives.
pub(super) struct Tiles(());

impl Tiles {
    /// Configures the registers.
    ///
    /// # Safety
    /// The CPU has tile registers and the system lets this process use them.
    pub unsafe fn set_up() -> Tiles {
        // SAFETY: the shapes are valid; the caller guarantees the rest.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &SHAPES, options(nostack, readonly))
        };
        Tiles(())
    }

    /// Adds the products of 32 rows with two panels to their sums: for each tile of columns first those of the rows'
    /// upper parts, then those of the lower parts.
    ///
    /// `x` is the first row, the others follow at a stride of `stride` bytes; a panel is vectors of column pairs; each
    /// panel has sums of all 32 rows.
    ///
    /// # Safety
    /// All 32 rows are readable.
    pub unsafe fn multiply(
        &self,
        x: TwoParts,
        stride: usize,
        panels: [&[[u8; ROW_BYTES]]; 2],
        sums: [&mut [[f32; PANEL_ROWS]; 2 * TILE_ROWS]; 2],
    ) {
        let count = panels[0].len() / TILE_ROWS;
        assert!(count > 0 && panels.iter().all(|p| p.len() == count * TILE_ROWS), "whole tiles");
        let [first, second] = sums.map(|sums| sums.as_mut_ptr());
        let (upper, lower) = (x.upper.as_ptr().cast::<u8>(), x.lower.as_ptr().cast::<u8>());
        let next = TILE_ROWS * stride;
        // SAFETY: tiles of panels and sums lie inside their slices; the caller guarantees those of the rows.
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("only x86-64 has tile registers");
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "tileloadd tmm4, [{first} + {row}*1]",
                "tileloadd tmm5, [{second} + {row}*1]",
                "tileloadd tmm6, [{first} + {row}*1 + {tile}]",
                "tileloadd tmm7, [{second} + {row}*1 + {tile}]",
                "2:",
                "tileloadd tmm0, [{upper} + {stride}*1]",
                "tileloadd tmm2, [{a} + {row}*1]",
                "tileloadd tmm3, [{b} + {row}*1]",
                "tileloadd tmm1, [{upper_next} + {stride}*1]",
                "tdpbf16ps tmm4, tmm0, tmm2",
                "tdpbf16ps tmm5, tmm0, tmm3",
                "tileloadd tmm0, [{lower} + {stride}*1]",
                "tdpbf16ps tmm6, tmm1, tmm2",
                "tdpbf16ps tmm7, tmm1, tmm3",
                "tileloadd tmm1, [{lower_next} + {stride}*1]",
                "tdpbf16ps tmm4, tmm0, tmm2",
                "tdpbf16ps tmm5, tmm0, tmm3",
                "tdpbf16ps tmm6, tmm1, tmm2",
                "tdpbf16ps tmm7, tmm1, tmm3",
                "add {upper}, {row}",
                "add {upper_next}, {row}",
                "add {lower}, {row}",
                "add {lower_next}, {row}",
                "add {a}, {tile}",
                "add {b}, {tile}",
                "dec {count}",
                "jnz 2b",
                "tilestored [{first} + {row}*1], tmm4",
                "tilestored [{second} + {row}*1], tmm5",
                "tilestored [{first} + {row}*1 + {tile}], tmm6",
                "tilestored [{second} + {row}*1 + {tile}], tmm7",
                first = in(reg) first, second = in(reg) second, row = in(reg) ROW_BYTES, tile = const TILE_BYTES,
                upper = inout(reg) upper => _, upper_next = inout(reg) upper.add(next) => _,
                lower = inout(reg) lower => _, lower_next = inout(reg) lower.add(next) => _,
                stride = in(reg) stride,
                a = inout(reg) panels[0].as_ptr() => _, b = inout(reg) panels[1].as_ptr() => _,
                count = inout(reg) count => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the registers were configured; nothing they hold is needed any more.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("tilerelease", options(nostack, nomem))
        };
    }
}
