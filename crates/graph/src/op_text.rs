//! An op as words and back: its name and `key=value` parameters. Knows no line structure.

use mambo_kernel::{
    Activation, Attention, AttentionDims, Epilogue, Op, OpKind, Rope, RopePairs, RopeScaling, RouteDims,
    Scoring, SsmDims,
};

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
        Op::RmsNorm { eps } | Op::LayerNorm { eps } => format!(" eps={eps:?}"),
        Op::HeadNorm { head_dim, eps } => format!(" head_dim={head_dim} eps={eps:?}"),
        Op::Rope(rope) => rope_words(rope),
        Op::Glu(activation) => activation_words(*activation),
        Op::SoftCap { cap } => format!(" cap={cap:?}"),
        Op::Matmul { out, epilogue } => format!(" out={out}{}", epilogue_words(*epilogue)),
        Op::Split { start, len } => format!(" start={start} len={len}"),
        Op::SsmConv(d) | Op::SsmScan(d) | Op::ShortConv(d) | Op::DeltaScan(d) => ssm_words(d, layer),
        Op::SsmStep { dims, eps } => format!("{} eps={eps:?}", ssm_words(dims, layer)),
        Op::GatedGroupNorm { groups, eps } => format!(" groups={groups} eps={eps:?}"),
        Op::Attention(a) if layer == Layer::Kv(a.dims) => score_words(a),
        Op::Attention(a) => attention_sizes(&a.dims) + &score_words(a),
        Op::MoeRoute(r) => format!(
            "{} experts={} top_k={} groups={} top_groups={} normalize={} scale={:?}",
            if r.scoring == Scoring::Softmax { " scoring=softmax" } else { "" },
            r.experts,
            r.top_k,
            r.groups,
            r.top_groups,
            r.normalize,
            r.scale
        ),
        Op::MoeBias { experts, top_k } => format!(" experts={experts} top_k={top_k}"),
        Op::MoeMatmul { experts, top_k, out, epilogue } => {
            format!(" experts={experts} top_k={top_k} out={out}{}", epilogue_words(*epilogue))
        }
        Op::MoeCombine { top_k, residual: false } => format!(" top_k={top_k}"),
        Op::MoeCombine { top_k, residual: true } => format!(" top_k={top_k} residual=true"),
        Op::Embed | Op::Add | Op::Relu2 | Op::Bias | Op::Concat => String::new(),
        Op::SsmDt | Op::GatherRows | Op::Choose => String::new(),
        Op::Quantize(to) => format!(" to={}", to.name()),
    }
}

/// ` key=value` words of an attention layer.
pub(crate) fn attention_sizes(a: &AttentionDims) -> String {
    format!(" q_heads={} kv_heads={} head_dim={}", a.q_heads, a.kv_heads, a.head_dim)
}

/// What an attention does that a plain one does not.
fn score_words(a: &Attention) -> String {
    let plain = Attention::plain(a.dims);
    let mut words = String::new();
    if a.scale != plain.scale {
        words += &format!(" scale={:?}", a.scale);
    }
    words += &a.window.map_or(String::new(), |window| format!(" window={window}"));
    words += &a.soft_cap.map_or(String::new(), |cap| format!(" soft_cap={cap:?}"));
    words + if a.sinks { " sinks=true" } else { "" }
}

fn rope_words(r: &Rope) -> String {
    let pairs = match r.pairs {
        RopePairs::Halves => "halves",
        RopePairs::Neighbours => "neighbours",
    };
    let mut words = format!(" head_dim={} rotary={} pairs={pairs} base={:?}", r.head_dim, r.rotary, r.base);
    words += &match r.scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear { factor } => format!(" scaling=linear factor={factor:?}"),
        RopeScaling::Llama3 { factor, low, high, original } => {
            format!(" scaling=llama3 factor={factor:?} low={low:?} high={high:?} original={original:?}")
        }
        RopeScaling::Yarn { factor, original, fast, slow, truncate, magnitude } => format!(
            " scaling=yarn factor={factor:?} original={original:?} fast={fast:?} slow={slow:?} truncate={truncate} \
             magnitude={magnitude:?}"
        ),
    };
    words + if r.has_factors { " factors=true" } else { "" }
}

fn activation_words(activation: Activation) -> String {
    match activation {
        Activation::Silu => " activation=silu".to_owned(),
        Activation::GeluTanh => " activation=gelu_tanh".to_owned(),
        Activation::Gelu => " activation=gelu".to_owned(),
        Activation::Sigmoid => " activation=sigmoid".to_owned(),
        Activation::ClampedSilu { alpha, limit } => {
            format!(" activation=clamped_silu alpha={alpha:?} limit={limit:?}")
        }
    }
}

/// ` key=value` words of a Mamba-2 layer.
pub(crate) fn ssm_sizes(d: &SsmDims) -> String {
    let SsmDims { heads, head_dim, state, groups, taps } = d;
    format!(" heads={heads} head_dim={head_dim} state={state} groups={groups} taps={taps}")
}

fn ssm_words(d: &SsmDims, layer: Layer) -> String {
    if layer == Layer::State(*d) { String::new() } else { ssm_sizes(d) }
}

fn epilogue_words(epilogue: Epilogue) -> String {
    match epilogue {
        Epilogue::None => String::new(),
        Epilogue::Relu2 => " epilogue=relu2".to_owned(),
        Epilogue::Residual => " epilogue=residual".to_owned(),
        Epilogue::Glu(activation) => format!(" epilogue=glu{}", activation_words(activation)),
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

    fn real64(&mut self, key: &str) -> Result<f64, String> {
        let word = self.need(key)?;
        let number: Option<f64> = word.parse().ok().filter(|x: &f64| x.is_finite());
        number.ok_or(format!("`{key}={word}` is not a finite number"))
    }

    fn optional<T: std::str::FromStr>(&mut self, key: &str) -> Result<Option<T>, String> {
        let word = self.take(key);
        word.map(|word| word.parse().map_err(|_| format!("`{key}={word}` is not a number"))).transpose()
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
            Some("glu") => Ok(Epilogue::Glu(self.activation()?)),
            Some(word) => Err(format!("`epilogue={word}` is not relu2, residual or glu")),
        }
    }

    pub(crate) fn attention(&mut self) -> Result<AttentionDims, String> {
        let (q_heads, kv_heads) = (self.size("q_heads")?, self.size("kv_heads")?);
        Ok(AttentionDims { q_heads, kv_heads, head_dim: self.size("head_dim")? })
    }

    fn scores(&mut self, dims: AttentionDims) -> Result<Attention, String> {
        let scale = self.optional("scale")?.unwrap_or(Attention::plain(dims).scale);
        let (window, soft_cap) = (self.optional("window")?, self.optional("soft_cap")?);
        Ok(Attention { dims, scale, window, soft_cap, sinks: self.flag("sinks")? })
    }

    fn rope(&mut self) -> Result<Rope, String> {
        let (head_dim, rotary) = (self.size("head_dim")?, self.size("rotary")?);
        let pairs = match self.need("pairs")? {
            "halves" => RopePairs::Halves,
            "neighbours" => RopePairs::Neighbours,
            word => return Err(format!("`pairs={word}` is neither halves nor neighbours")),
        };
        let base = self.real64("base")?;
        let scaling = match self.take("scaling") {
            None => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: self.real64("factor")? },
            Some("llama3") => RopeScaling::Llama3 {
                factor: self.real64("factor")?,
                low: self.real64("low")?,
                high: self.real64("high")?,
                original: self.real64("original")?,
            },
            Some("yarn") => RopeScaling::Yarn {
                factor: self.real64("factor")?,
                original: self.real64("original")?,
                fast: self.real64("fast")?,
                slow: self.real64("slow")?,
                truncate: self.flag("truncate")?,
                magnitude: self.real64("magnitude")?,
            },
            Some(word) => return Err(format!("`scaling={word}` is not linear, llama3 or yarn")),
        };
        Ok(Rope { head_dim, rotary, pairs, base, scaling, has_factors: self.flag("factors")? })
    }

    fn activation(&mut self) -> Result<Activation, String> {
        Ok(match self.need("activation")? {
            "silu" => Activation::Silu,
            "gelu_tanh" => Activation::GeluTanh,
            "gelu" => Activation::Gelu,
            "sigmoid" => Activation::Sigmoid,
            "clamped_silu" => {
                Activation::ClampedSilu { alpha: self.real("alpha")?, limit: self.real("limit")? }
            }
            word => return Err(format!("`activation={word}` is not an activation")),
        })
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
        let scoring = match self.take("scoring") {
            None | Some("sigmoid") => Scoring::Sigmoid,
            Some("softmax") => Scoring::Softmax,
            Some(word) => return Err(format!("`scoring={word}` is neither sigmoid nor softmax")),
        };
        let (experts, top_k) = (self.size("experts")?, self.size("top_k")?);
        let (groups, top_groups) = (self.size("groups")?, self.size("top_groups")?);
        let normalize = self.flag("normalize")?;
        Ok(RouteDims { scoring, experts, top_k, groups, top_groups, normalize, scale: self.real("scale")? })
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
        OpKind::LayerNorm => Op::LayerNorm { eps: w.real("eps")? },
        OpKind::HeadNorm => Op::HeadNorm { head_dim: w.size("head_dim")?, eps: w.real("eps")? },
        OpKind::Rope => Op::Rope(w.rope()?),
        OpKind::Glu => Op::Glu(w.activation()?),
        OpKind::Bias => Op::Bias,
        OpKind::SoftCap => Op::SoftCap { cap: w.real("cap")? },
        OpKind::ShortConv => Op::ShortConv(w.ssm_or(layer)?),
        OpKind::DeltaScan => Op::DeltaScan(w.ssm_or(layer)?),
        OpKind::MoeBias => Op::MoeBias { experts: w.size("experts")?, top_k: w.size("top_k")? },
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
        OpKind::Attention => {
            let dims = match layer {
                Layer::Kv(dims) if !w.items.iter().any(|(key, _)| *key == "q_heads") => dims,
                _ => w.attention()?,
            };
            Op::Attention(w.scores(dims)?)
        }
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
