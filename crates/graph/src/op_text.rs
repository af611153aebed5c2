//! An op as words and back: its name and `key=value` parameters. Knows no line structure.

use mambo_kernel::{AttentionDims, Epilogue, Op, OpKind, RouteDims, SsmDims};

/// The cache layer a node names; its sizes are not repeated beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Layer {
    None,
    Kv(AttentionDims),
    State(SsmDims),
}

/// The op's parameters as ` key=value` words; sizes that the layer gives are left out.
pub(crate) fn parameters(op: &Op, layer: Layer) -> String {
    match op {
        Op::RmsNorm { eps } => format!(" eps={eps:?}"),
        Op::Matmul { out, epilogue } => format!(" out={out}{}", epilogue_word(*epilogue)),
        Op::Split { start, len } => format!(" start={start} len={len}"),
        Op::SsmConv(d) | Op::SsmScan(d) => ssm_words(d, layer),
        Op::SsmStep { dims, eps } => format!("{} eps={eps:?}", ssm_words(dims, layer)),
        Op::GatedGroupNorm { groups, eps } => format!(" groups={groups} eps={eps:?}"),
        Op::Attention(a) if layer == Layer::Kv(*a) => String::new(),
        Op::Attention(a) => attention_sizes(a),
        Op::MoeRoute(r) => format!(
            " experts={} top_k={} groups={} top_groups={} normalize={} scale={:?}",
            r.experts, r.top_k, r.groups, r.top_groups, r.normalize, r.scale
        ),
        Op::MoeMatmul { experts, top_k, out, epilogue } => {
            format!(" experts={experts} top_k={top_k} out={out}{}", epilogue_word(*epilogue))
        }
        Op::MoeCombine { top_k, residual: false } => format!(" top_k={top_k}"),
        Op::MoeCombine { top_k, residual: true } => format!(" top_k={top_k} residual=true"),
        Op::Embed | Op::Add | Op::Relu2 | Op::Concat | Op::SsmDt | Op::GatherRows | Op::Choose => {
            String::new()
        }
        Op::Quantize(to) => format!(" to={}", to.name()),
    }
}

/// ` key=value` words of an attention layer.
pub(crate) fn attention_sizes(a: &AttentionDims) -> String {
    format!(" q_heads={} kv_heads={} head_dim={}", a.q_heads, a.kv_heads, a.head_dim)
}

/// ` key=value` words of a Mamba-2 layer.
pub(crate) fn ssm_sizes(d: &SsmDims) -> String {
    let SsmDims { heads, head_dim, state, groups, taps } = d;
    format!(" heads={heads} head_dim={head_dim} state={state} groups={groups} taps={taps}")
}

fn ssm_words(d: &SsmDims, layer: Layer) -> String {
    if layer == Layer::State(*d) { String::new() } else { ssm_sizes(d) }
}

fn epilogue_word(epilogue: Epilogue) -> &'static str {
    match epilogue {
        Epilogue::None => "",
        Epilogue::Relu2 => " epilogue=relu2",
        Epilogue::Residual => " epilogue=residual",
    }
}

/// `key=value` words, taken one by one; what is left over is an error.
pub(crate) struct Words<'a> {
    items: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(crate) fn new(words: &[&'a str]) -> Result<Self, String> {
        let pair = |word: &&'a str| word.split_once('=').ok_or(format!("`{word}` is not key=value"));
        Ok(Words { items: words.iter().map(pair).collect::<Result<_, _>>()? })
    }

    fn take(&mut self, key: &str) -> Option<&'a str> {
        let found = self.items.iter().position(|(k, _)| *k == key)?;
        Some(self.items.remove(found).1)
    }

    fn need(&mut self, key: &str) -> Result<&'a str, String> {
        self.take(key).ok_or(format!("`{key}=` is missing"))
    }

    fn size(&mut self, key: &str) -> Result<usize, String> {
        let word = self.need(key)?;
        word.parse().map_err(|_| format!("`{key}={word}` is not a whole number"))
    }

    fn real(&mut self, key: &str) -> Result<f32, String> {
        let word = self.need(key)?;
        let number: Option<f32> = word.parse().ok().filter(|x: &f32| x.is_finite());
        number.ok_or(format!("`{key}={word}` is not a finite number"))
    }

    fn flag(&mut self, key: &str) -> Result<bool, String> {
        match self.take(key) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(word) => Err(format!("`{key}={word}` is neither true nor false")),
        }
    }

    fn epilogue(&mut self) -> Result<Epilogue, String> {
        match self.take("epilogue") {
            None => Ok(Epilogue::None),
            Some("relu2") => Ok(Epilogue::Relu2),
            Some("residual") => Ok(Epilogue::Residual),
            Some(word) => Err(format!("`epilogue={word}` is neither relu2 nor residual")),
        }
    }

    pub(crate) fn attention(&mut self) -> Result<AttentionDims, String> {
        let (q_heads, kv_heads) = (self.size("q_heads")?, self.size("kv_heads")?);
        Ok(AttentionDims { q_heads, kv_heads, head_dim: self.size("head_dim")? })
    }

    pub(crate) fn ssm(&mut self) -> Result<SsmDims, String> {
        let (heads, head_dim, state) = (self.size("heads")?, self.size("head_dim")?, self.size("state")?);
        Ok(SsmDims { heads, head_dim, state, groups: self.size("groups")?, taps: self.size("taps")? })
    }

    fn ssm_or(&mut self, layer: Layer) -> Result<SsmDims, String> {
        match layer {
            Layer::State(dims) if !self.items.iter().any(|(k, _)| *k == "heads") => Ok(dims),
            _ => self.ssm(),
        }
    }

    fn route(&mut self) -> Result<RouteDims, String> {
        let (experts, top_k) = (self.size("experts")?, self.size("top_k")?);
        let (groups, top_groups) = (self.size("groups")?, self.size("top_groups")?);
        let normalize = self.flag("normalize")?;
        Ok(RouteDims { experts, top_k, groups, top_groups, normalize, scale: self.real("scale")? })
    }

    pub(crate) fn finish(self) -> Result<(), String> {
        match self.items.first() {
            Some((key, value)) => Err(format!("`{key}={value}` is not a parameter here")),
            None => Ok(()),
        }
    }
}

/// The op of a name and its `key=value` words.
pub(crate) fn parse_op(name: &str, words: &[&str], layer: Layer) -> Result<Op, String> {
    let kind = OpKind::ALL.into_iter().find(|k| k.name() == name).ok_or(format!("`{name}` is not an op"))?;
    let mut w = Words::new(words)?;
    let op = match kind {
        OpKind::Embed => Op::Embed,
        OpKind::RmsNorm => Op::RmsNorm { eps: w.real("eps")? },
        OpKind::Matmul => Op::Matmul { out: w.size("out")?, epilogue: w.epilogue()? },
        OpKind::Add => Op::Add,
        OpKind::Relu2 => Op::Relu2,
        OpKind::Split => Op::Split { start: w.size("start")?, len: w.size("len")? },
        OpKind::Concat => Op::Concat,
        OpKind::SsmConv => Op::SsmConv(w.ssm_or(layer)?),
        OpKind::SsmDt => Op::SsmDt,
        OpKind::SsmScan => Op::SsmScan(w.ssm_or(layer)?),
        OpKind::GatedGroupNorm => Op::GatedGroupNorm { groups: w.size("groups")?, eps: w.real("eps")? },
        OpKind::SsmStep => Op::SsmStep { dims: w.ssm_or(layer)?, eps: w.real("eps")? },
        OpKind::Attention => Op::Attention(match layer {
            Layer::Kv(dims) if w.items.is_empty() => dims,
            _ => w.attention()?,
        }),
        OpKind::MoeRoute => Op::MoeRoute(w.route()?),
        OpKind::MoeMatmul => {
            let (experts, top_k, out) = (w.size("experts")?, w.size("top_k")?, w.size("out")?);
            Op::MoeMatmul { experts, top_k, out, epilogue: w.epilogue()? }
        }
        OpKind::MoeCombine => Op::MoeCombine { top_k: w.size("top_k")?, residual: w.flag("residual")? },
        OpKind::GatherRows => Op::GatherRows,
        OpKind::Choose => Op::Choose,
        OpKind::Quantize => {
            return Err("`quantize` is inserted by lowering and never stands in a graph".into());
        }
    };
    w.finish()?;
    Ok(op)
}
