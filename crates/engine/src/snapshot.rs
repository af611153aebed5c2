//! A sequence's memory at one position: recurrent state and KV pages together. A hybrid model needs
//! both, so they are never separated.
//!
//! Inside its engine a snapshot shares the sequence's full pages. [`crate::Engine::export`] and
//! [`Snapshot::from_bytes`] give its portable form: cells in the contract's layout behind a header that names version and model.

use std::cmp::Ordering;
use std::sync::Arc;

use mambo_kernel::{CacheTypes, KvElem, KvTypes, PAGE_TOKENS, StateElem};

use crate::cache::CellRef;
use crate::checksum::checksum;
use crate::error::EngineError;
use crate::fingerprint::Fingerprint;

/// Version of the portable form.
const VERSION: u32 = 3;
const MAGIC: &[u8; 8] = b"MAMBOSNP";
/// Bytes before the tokens: name, version, model, types and four lengths.
const HEADER_BYTES: usize = 8 + 4 + 8 + 3 + 4 * 8;
/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 8;

/// A page or a slot as a snapshot holds it.
#[derive(Clone, Debug)]
pub(crate) enum SnapshotCell {
    /// In the engine's pool, perhaps shared with sequences and other snapshots.
    Shared(CellRef),
    /// Outside, in the contract's layout.
    Bytes(Arc<Vec<u8>>),
}

impl SnapshotCell {
    /// Whether it is outside, or in a pool that owns it.
    pub fn is_held_by(&self, owns: impl Fn(&CellRef) -> bool) -> bool {
        match self {
            SnapshotCell::Shared(cell) => owns(cell),
            SnapshotCell::Bytes(_) => true,
        }
    }
}

/// The caches of a sequence after its first `tokens`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The model it belongs to.
    pub(crate) model: Fingerprint,
    /// What the bytes of the cells are; types of one size differ in nothing else.
    pub(crate) types: CacheTypes,
    /// The tokens that ran.
    pub(crate) tokens: Vec<u32>,
    /// The recurrent slot.
    pub(crate) slot: SnapshotCell,
    /// Bytes of its cell in the contract's layout.
    pub(crate) slot_bytes: usize,
    /// The KV pages that the next token sees, by group.
    pub(crate) groups: Vec<SnapshotPages>,
}

/// The pages of one group: the last ones that hold the snapshot's tokens.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotPages {
    /// In position order.
    pub pages: Vec<SnapshotCell>,
    /// Bytes of each.
    pub page_bytes: usize,
}

impl SnapshotPages {
    /// The pages, and whether each is full at the position that the snapshot was taken at.
    pub fn filled(&self, position: usize) -> impl Iterator<Item = (&SnapshotCell, bool)> {
        let (count, full) = (self.pages.len(), position.is_multiple_of(PAGE_TOKENS));
        self.pages.iter().enumerate().map(move |(index, page)| (page, full || index + 1 < count))
    }
}

impl Snapshot {
    /// The tokens that ran.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether a prompt can go on from here: it starts with the snapshot's tokens, and at least one token is
    /// left to run, or there would be no logits to choose from.
    pub fn begins(&self, prompt: &[u32]) -> bool {
        self.tokens.len() < prompt.len() && prompt.starts_with(&self.tokens)
    }

    /// Bytes held, shared pages included.
    pub fn bytes(&self) -> usize {
        self.slot_bytes + self.groups.iter().map(|group| group.pages.len() * group.page_bytes).sum::<usize>()
    }

    /// The portable form, with the bytes of the slot and of every page, group by group.
    pub(crate) fn to_bytes(&self, slot: &[u8], pages: &[Vec<u8>]) -> Vec<u8> {
        let kv_bytes = self.groups.iter().map(|group| 2 * 8 + group.pages.len() * group.page_bytes).sum();
        let all = HEADER_BYTES + self.tokens.len() * 4 + slot.len() + kv_bytes;
        let mut out = Vec::with_capacity(all + CHECKSUM_BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.model.0.to_le_bytes());
        out.extend(type_codes(self.types));
        for length in [self.tokens.len(), slot.len(), self.groups.len(), kv_bytes] {
            out.extend((length as u64).to_le_bytes());
        }
        out.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        out.extend(slot);
        let mut pages = pages.iter();
        for group in &self.groups {
            for length in [group.pages.len(), group.page_bytes] {
                out.extend((length as u64).to_le_bytes());
            }
            pages.by_ref().take(group.pages.len()).for_each(|page| out.extend(page));
        }
        out.extend(checksum(&out).to_le_bytes());
        out
    }

    /// Reads the portable form; whether it fits an engine is checked when it is adopted or resumed there.
    pub fn from_bytes(bytes: &[u8]) -> Result<Snapshot, EngineError> {
        let header = SnapshotHeader::read(bytes)?;
        let problem = |problem: &str| Err(EngineError::SnapshotBytes(problem.into()));
        match (bytes.len() as u64).cmp(&header.file_bytes) {
            Ordering::Less => return problem("are cut off"),
            Ordering::Greater => return problem("go on after their end"),
            Ordering::Equal => {}
        }
        let (bytes, sum) = bytes.split_last_chunk().expect("the length was checked");
        if checksum(bytes) != u64::from_le_bytes(*sum) {
            return problem("are damaged: their checksum differs");
        }
        let mut rest = Rest(&bytes[HEADER_BYTES..]);
        let tokens = rest.take(header.tokens * 4)?.as_chunks().0;
        let tokens = tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let slot = SnapshotCell::Bytes(Arc::new(rest.take(header.slot_bytes)?.to_vec()));
        let groups = (0..header.groups).map(|_| read_pages(&mut rest)).collect::<Result<_, _>>()?;
        if !rest.0.is_empty() {
            return problem("go on after their pages");
        }
        let SnapshotHeader { model, types, slot_bytes, .. } = header;
        Ok(Snapshot { model, types, tokens, slot, slot_bytes, groups })
    }
}

/// The pages of one group.
fn read_pages(rest: &mut Rest) -> Result<SnapshotPages, EngineError> {
    let [count, page_bytes] = [rest.length()?, rest.length()?];
    let bytes = count.checked_mul(page_bytes).filter(|_| page_bytes > 0);
    let bytes = bytes.ok_or_else(|| EngineError::SnapshotBytes("name pages of impossible sizes".into()))?;
    let pages = rest.take(bytes)?.chunks_exact(page_bytes);
    let pages = pages.map(|page| SnapshotCell::Bytes(Arc::new(page.to_vec()))).collect();
    Ok(SnapshotPages { pages, page_bytes })
}

/// What the first bytes of the portable form say; enough to list snapshots without reading them whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The model it belongs to.
    pub model: Fingerprint,
    /// Tokens that ran; their ids follow the header, four bytes each.
    pub tokens: usize,
    /// Bytes of the whole portable form.
    pub file_bytes: u64,
    types: CacheTypes,
    slot_bytes: usize,
    /// Groups of pages; each says how many there are and how large.
    groups: usize,
}

impl SnapshotHeader {
    /// Bytes that [`SnapshotHeader::read`] needs.
    pub const BYTES: usize = HEADER_BYTES;

    /// Reads the header from the first bytes of the portable form.
    pub fn read(bytes: &[u8]) -> Result<SnapshotHeader, EngineError> {
        let mut rest = Rest(bytes);
        if rest.take(8)? != MAGIC {
            return Err(EngineError::SnapshotBytes("do not start as one".into()));
        }
        let version = rest.u32()?;
        if version != VERSION {
            let problem = format!("are of version {version}, and this engine reads version {VERSION}");
            return Err(EngineError::SnapshotBytes(problem));
        }
        let model = Fingerprint(rest.u64()?);
        let types = read_types(rest.take(3)?)?;
        let [tokens, slot_bytes, groups, kv_bytes] =
            [rest.length()?, rest.length()?, rest.length()?, rest.length()?];
        let ends = [(tokens, 4), (slot_bytes, 1), (kv_bytes, 1), (1, HEADER_BYTES + CHECKSUM_BYTES)];
        let total = ends
            .iter()
            .try_fold(0u64, |sum, (count, each)| sum.checked_add((*count as u64).checked_mul(*each as u64)?));
        let total = total.filter(|total| isize::try_from(*total).is_ok());
        let file_bytes = total.ok_or_else(|| EngineError::SnapshotBytes("name impossible lengths".into()))?;
        Ok(SnapshotHeader { model, tokens, file_bytes, types, slot_bytes, groups })
    }
}

/// Bytes not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], EngineError> {
        self.0.split_off(..count).ok_or_else(|| EngineError::SnapshotBytes("are cut off".into()))
    }

    fn u32(&mut self) -> Result<u32, EngineError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, EngineError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn length(&mut self) -> Result<usize, EngineError> {
        let length = self.u64()?;
        usize::try_from(length).map_err(|_| EngineError::SnapshotBytes(format!("name a length of {length}")))
    }
}

/// One byte each for keys, values and states.
fn type_codes(types: CacheTypes) -> [u8; 3] {
    let kv = |elem: KvElem| {
        KvElem::ALL.iter().position(|other| *other == elem).expect("every type is listed") as u8
    };
    let state = StateElem::ALL.iter().position(|other| *other == types.state).expect("every type is listed");
    [kv(types.kv.k), kv(types.kv.v), state as u8]
}

fn read_types(codes: &[u8]) -> Result<CacheTypes, EngineError> {
    let unknown = |code: u8| EngineError::SnapshotBytes(format!("name cache type {code}, which is unknown"));
    let kv = |code: u8| KvElem::ALL.get(usize::from(code)).copied().ok_or_else(|| unknown(code));
    let state = StateElem::ALL.get(usize::from(codes[2])).copied().ok_or_else(|| unknown(codes[2]))?;
    Ok(CacheTypes { kv: KvTypes { k: kv(codes[0])?, v: kv(codes[1])? }, state })
}
