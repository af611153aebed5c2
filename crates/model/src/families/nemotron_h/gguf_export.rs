//! The keys of the family's GGUF files, as llama.cpp's converter writes them, so that llama.cpp loads the file too.

use mambo_checkpoint::GgufValue;
use mambo_kernel::{AttentionDims, SsmDims};

use crate::spec::{LayerSpec, Mixer, ModelSpec, MoeSpec};

/// What converters write where a model has no limit of its own.
const UNLIMITED_CONTEXT: u32 = 1 << 20;

/// One key and its value, without the architecture's prefix.
type Entry = (&'static str, GgufValue);

/// The architecture's name and its keys.
pub(super) fn write(spec: &ModelSpec) -> (&'static str, Vec<(&'static str, GgufValue)>) {
    let keys = Keys(spec);
    let name = if keys.experts().next().is_some() { "nemotron_h_moe" } else { "nemotron_h" };
    (name, [keys.block_keys(), keys.expert_choice_keys(), keys.ssm_keys(), keys.expert_keys()].concat())
}

struct Keys<'a>(&'a ModelSpec);

impl std::ops::Deref for Keys<'_> {
    type Target = ModelSpec;

    fn deref(&self) -> &ModelSpec {
        self.0
    }
}

/// The one mixer of a layer.
fn mixer(layer: &LayerSpec) -> Mixer {
    *layer.mixers().next().expect("a layer has a mixer")
}

impl Keys<'_> {
    fn experts(&self) -> impl Iterator<Item = MoeSpec> {
        let trunk = self.mixers().filter_map(|mixer| match mixer {
            Mixer::Moe(m) => Some(*m),
            _ => None,
        });
        trunk.chain(self.mtp.map(|m| m.moe))
    }

    /// A number per block, the MTP head's last.
    fn per_block(&self, layer: impl Fn(&Mixer) -> usize, mtp: usize) -> Vec<i32> {
        let mut values: Vec<i32> = self.layers.iter().map(|l| layer(&mixer(l)) as i32).collect();
        values.extend(self.mtp.map(|_| mtp as i32));
        values
    }

    /// One number where all experts agree, else one per block.
    fn per_moe(&self, of: impl Fn(&MoeSpec) -> usize) -> GgufValue {
        let mut sizes = self.experts().map(|m| of(&m));
        let first = sizes.next().unwrap_or(0);
        if sizes.all(|size| size == first) {
            return GgufValue::U32(first as u32);
        }
        let layer = |mixer: &Mixer| match mixer {
            Mixer::Moe(m) => of(m),
            _ => 0,
        };
        self.per_block(layer, self.mtp.map_or(0, |m| of(&m.moe))).into()
    }

    fn block_keys(&self) -> Vec<Entry> {
        let attention = self.any_attention();
        let width = |mixer: &Mixer| match mixer {
            Mixer::Mlp(m) => m.width,
            Mixer::Moe(m) => m.expert_width,
            _ => 0,
        };
        let kv_heads = |mixer: &Mixer| match mixer {
            Mixer::Attention(a) => a.dims().kv_heads,
            _ => 0,
        };
        let blocks = self.layers.len() + usize::from(self.mtp.is_some());
        let mtp_width = self.mtp.map_or(0, |m| m.moe.expert_width);
        let mtp_kv_heads = self.mtp.map_or(0, |m| m.attention.kv_heads);
        let context = self.context.map_or(UNLIMITED_CONTEXT, |c| c as u32);
        vec![
            ("block_count", (blocks as u32).into()),
            ("context_length", context.into()),
            ("embedding_length", (self.hidden as u32).into()),
            ("feed_forward_length", self.per_block(width, mtp_width).into()),
            ("attention.head_count", (attention.q_heads as u32).into()),
            ("attention.head_count_kv", self.per_block(kv_heads, mtp_kv_heads).into()),
            ("attention.layer_norm_rms_epsilon", self.norm_eps.into()),
            ("attention.layer_norm_epsilon", self.norm_eps.into()),
        ]
    }

    fn expert_choice_keys(&self) -> Vec<Entry> {
        let Some(m) = self.experts().next() else { return Vec::new() };
        vec![
            ("expert_count", (m.route.experts as u32).into()),
            ("expert_used_count", self.per_moe(|m| m.route.top_k)),
            ("expert_group_count", (m.route.groups as u32).into()),
            ("expert_group_used_count", (m.route.top_groups as u32).into()),
        ]
    }

    fn ssm_keys(&self) -> Vec<Entry> {
        let attention = self.any_attention();
        let d = self.any_ssm();
        vec![
            ("vocab_size", (self.vocab as u32).into()),
            // Read by nobody who computes, but the loader asks for it.
            ("rope.dimension_count", ((self.hidden / attention.q_heads) as u32).into()),
            ("ssm.conv_kernel", (d.taps as u32).into()),
            ("ssm.state_size", (d.state as u32).into()),
            ("ssm.group_count", (d.groups as u32).into()),
            ("ssm.inner_size", (d.inner() as u32).into()),
            ("ssm.time_step_rank", (d.heads as u32).into()),
            ("rope.scaling.finetuned", false.into()),
            ("attention.key_length", (attention.head_dim as u32).into()),
            ("attention.value_length", (attention.head_dim as u32).into()),
        ]
    }

    fn expert_keys(&self) -> Vec<Entry> {
        let Some(m) = self.experts().next() else { return Vec::new() };
        let mut keys: Vec<Entry> = vec![
            ("expert_feed_forward_length", self.per_moe(|m| m.expert_width)),
            ("expert_shared_feed_forward_length", (m.shared_width.unwrap_or(0) as u32).into()),
            ("expert_shared_count", u32::from(m.shared_width.is_some()).into()),
            ("expert_weights_norm", m.route.normalize.into()),
            ("expert_weights_scale", m.route.scale.into()),
        ];
        keys.extend(m.latent.map(|latent| ("moe_latent_size", GgufValue::U32(latent as u32))));
        keys.extend(self.mtp.map(|_| ("nextn_predict_layers", GgufValue::U32(1))));
        keys
    }

    /// The attention that stands for all in keys given once; a model without any counts as one head.
    fn any_attention(&self) -> AttentionDims {
        let first = self.cache_layers().kv_layers.first().copied();
        first.unwrap_or(AttentionDims { q_heads: 1, kv_heads: 1, head_dim: self.hidden })
    }

    fn any_ssm(&self) -> SsmDims {
        let first = self.cache_layers().state_layers.first().copied();
        first.unwrap_or(SsmDims { heads: 0, head_dim: 0, state: 0, groups: 0, taps: 0 })
    }
}
