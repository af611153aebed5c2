//! Rows made by several workers, written in order. Knows pieces of tensors, not what is in them.
//!
//! Worker `w` of `n` makes pieces `w`, `w + n`, ... and hands each over through a channel of its own that
//! holds one; reading the channels in turn gives the pieces in order. So at most three pieces per worker
//! exist at a time, whatever the size of the model.

use std::ops::{ControlFlow, Range};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use crate::{ConvertError, Layout, Planned, Progress, Source};

/// Bytes of one piece, unless a single row is longer. Must not depend on the machine: random values are
/// drawn piece by piece.
const PIECE_BYTES: usize = 4 << 20;

/// Some rows of one tensor.
struct Piece<'a> {
    tensor: &'a Planned,
    rows: Range<usize>,
}

impl Piece<'_> {
    fn bytes(&self) -> usize {
        self.rows.len() * self.tensor.row_bytes()
    }
}

fn pieces(tensors: &[Planned]) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for tensor in tensors {
        let step = (PIECE_BYTES / tensor.row_bytes()).max(1);
        let rows = tensor.row_count();
        let starts = (0..rows).step_by(step);
        pieces.extend(starts.map(|start| Piece { tensor, rows: start..(start + step).min(rows) }));
    }
    pieces
}

/// One worker as the writer sees it: full buffers come, empty ones go back.
struct Lane {
    full: Receiver<Result<Vec<u8>, ConvertError>>,
    empty: Sender<Vec<u8>>,
}

/// Where pieces go, tensor by tensor and in order.
pub trait Sink {
    /// Takes the next piece of a tensor.
    fn write(&mut self, tensor: &Planned, piece: &[u8]) -> Result<(), ConvertError>;
}

/// Streams every tensor to the writer; `progress` gets the bytes written so far and may stop it.
pub fn stream(
    writer: &mut dyn Sink,
    layout: &Layout,
    source: &dyn Source,
    threads: usize,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), ConvertError> {
    let (pieces, total) = (pieces(&layout.tensors), layout.bytes());
    let threads = threads.max(1);
    std::thread::scope(|scope| {
        let lanes: Vec<Lane> = (0..threads)
            .map(|first| {
                let (full_in, full) = sync_channel(1);
                let (empty, empty_out) = channel();
                let mine = pieces.iter().skip(first).step_by(threads);
                scope.spawn(move || make(mine, source, &full_in, &empty_out));
                Lane { full, empty }
            })
            .collect();
        let mut done = 0;
        for (piece, lane) in pieces.iter().zip(lanes.iter().cycle()) {
            let bytes = lane.full.recv().map_err(|_| ConvertError::WorkerGone)??;
            writer.write(piece.tensor, &bytes)?;
            done += bytes.len() as u64;
            if progress(Progress { done, total }).is_break() {
                return Err(ConvertError::Stopped);
            }
            // A worker that has made its last piece takes no more buffers.
            let _ = lane.empty.send(bytes);
        }
        Ok(())
    })
}

/// Makes pieces until there are no more or the writer has stopped.
fn make<'a>(
    pieces: impl Iterator<Item = &'a Piece<'a>>,
    source: &dyn Source,
    full: &SyncSender<Result<Vec<u8>, ConvertError>>,
    empty: &Receiver<Vec<u8>>,
) {
    for piece in pieces {
        let mut bytes = empty.try_recv().unwrap_or_default();
        bytes.resize(piece.bytes(), 0);
        let made = source.rows(piece.tensor, piece.rows.clone(), &mut bytes).map_err(|error| {
            ConvertError::Tensor { tensor: piece.tensor.name.clone(), source: Box::new(error) }
        });
        if full.send(made.map(|()| bytes)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;
    use mambo_model::{Order, Part};
    use mambo_tensor::DType;

    fn planned(name: &str, shape: &[usize]) -> Planned {
        Planned {
            name: name.to_owned(),
            weight: name.to_owned(),
            part: Part::Embed,
            shape: shape.to_vec(),
            dtype: DType::F32,
            first_row: 0,
            second: None,
            rows: Order::Same,
            columns: Order::Same,
            content: Content::Values,
        }
    }

    #[test]
    fn pieces_cover_every_row_once_and_stay_small() {
        let tensors = [planned("a", &[5, 1 << 20]), planned("b", &[7]), planned("c", &[2, 3, 1 << 18])];
        let pieces = pieces(&tensors);
        for tensor in &tensors {
            let mine: Vec<_> = pieces.iter().filter(|p| p.tensor.name == tensor.name).collect();
            let rows: Vec<usize> = mine.iter().flat_map(|p| p.rows.clone()).collect();
            assert_eq!(rows, (0..tensor.row_count()).collect::<Vec<_>>());
            assert!(mine.iter().all(|p| p.bytes() <= PIECE_BYTES));
        }
    }
}
