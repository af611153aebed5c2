//! Keys and shapes of tensors become a specification.

use super::mixers::{attention, delta_net, mamba2, mlp, moe, short_conv};
use super::{Dialect, Multipliers, UNLIMITED_CONTEXT};
use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::families::granite;
use crate::gguf::GgufReader;
use crate::names::{Part, Place};
use crate::spec::{Factor, Half, LayerSpec, Mixer, ModelSpec};

/// Describes the model of a file in this dialect.
pub(crate) fn read(reader: &GgufReader, dialect: &Dialect) -> Result<ModelSpec, ModelError> {
    let mut notes = Vec::new();
    let norm_eps = reader.epsilon(&mut notes)?;
    let [vocab, hidden] = reader.want_shape(Place::Model, Part::Embed, 0)?;
    let depth = depth(reader, &mut notes)?;
    let file = File { reader, dialect, hidden, depth };
    let layers = (0..depth).map(|index| file.layer(norm_eps, index)).collect::<Result<Vec<_>, _>>()?;
    let has_positions = layers
        .iter()
        .flat_map(LayerSpec::mixers)
        .any(|mixer| matches!(mixer, Mixer::Attention(a) if a.rope.is_some()));
    let context = reader.size("context_length")?;
    Ok(ModelSpec {
        architecture: reader.family.name.to_owned(),
        hidden,
        vocab,
        layers,
        norm_eps,
        mtp: None,
        tied_embeddings: (reader.shape_of)("output.weight").is_none(),
        factors: file.factors()?,
        logit_cap: file.number("final_logit_softcapping")?.filter(|cap| *cap > 0.0),
        context: context.filter(|&n| has_positions || n != UNLIMITED_CONTEXT),
        bos: None,
        stop_tokens: Vec::new(),
        notes,
    })
}

/// Layers of the trunk; blocks that predict a further token come after them.
fn depth(reader: &GgufReader, notes: &mut Vec<String>) -> Result<usize, ModelError> {
    let blocks = reader.want_size("block_count")?;
    let further = reader.size("nextn_predict_layers")?.unwrap_or(0);
    let depth = blocks.saturating_sub(further);
    if depth == 0 || blocks > MAX_LAYERS {
        let problem =
            format!("is {blocks}, of which {further} predict further tokens, expected 1 to {MAX_LAYERS}");
        return Err(reader.bad(&reader.key("block_count"), problem));
    }
    if further > 0 {
        notes.push("the file's blocks for multi-token prediction are not used".to_owned());
    }
    reader.check_no_more_blocks(blocks)?;
    Ok(depth)
}

/// A file that is read in a dialect.
pub(super) struct File<'a> {
    pub reader: &'a GgufReader<'a>,
    pub dialect: &'a Dialect,
    pub hidden: usize,
    pub depth: usize,
}

impl File<'_> {
    /// A number by its key.
    pub fn number(&self, name: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.reader.metadata.f32(&self.reader.key(name))?)
    }

    /// Whether a layer has a part.
    pub fn has(&self, index: usize, part: Part) -> bool {
        self.reader.shape(Place::Layer(index), part, index).is_some()
    }

    fn layer(&self, norm_eps: f32, index: usize) -> Result<LayerSpec, ModelError> {
        let has = |part| self.has(index, part);
        let mut mixers = Vec::new();
        // A tensor of delta nets may have the name of Mamba-2's projection.
        if has(Part::DeltaStrength) {
            mixers.push(Mixer::DeltaNet(delta_net(self, index)?));
        } else if has(Part::InProj) && has(Part::DtBias) {
            mixers.push(Mixer::Mamba2(mamba2(self.reader, index)?));
        } else if has(Part::InProj) {
            mixers.push(short_conv(self, index)?);
        }
        if has(Part::Q) {
            mixers.push(Mixer::Attention(attention(self, index)?));
        }
        if mixers.is_empty() {
            let problem = "lacks the tensor that tells its mixer, so what it computes is unknown";
            return Err(self.reader.bad(&format!("blk.{index}"), problem.to_owned()));
        }
        // gpt-oss calls the norm before its experts by the name that others give to the one after attention.
        let post_norm = has(Part::PostNorm) && has(Part::MlpPostNorm);
        let mut halves = vec![Half { mixers, post_norm }];
        if has(Part::Router) {
            halves.push(Half { mixers: vec![moe(self, index)?], post_norm });
        } else if has(Part::Up) || has(Part::MlpNorm) {
            halves.push(Half { mixers: vec![mlp(self, index)?], post_norm });
        }
        Ok(LayerSpec { norm_eps, halves })
    }

    fn factors(&self) -> Result<Vec<Factor>, ModelError> {
        Ok(match self.dialect.multipliers {
            Multipliers::InWeights => Vec::new(),
            Multipliers::RootOfHidden => {
                vec![Factor::all(Part::Embed, (self.hidden as f64).sqrt() as f32)]
            }
            Multipliers::InKeys => {
                let key = |name| {
                    Ok::<_, ModelError>(self.number(name)?.filter(|factor| *factor != 0.0).unwrap_or(1.0))
                };
                granite::factors(key("embedding_scale")?, key("residual_scale")?, key("logit_scale")?)
            }
        })
    }
}
