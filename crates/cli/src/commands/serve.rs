//! `mambo serve`: a server for the tools that speak to models.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use mambo_checkpoint::Metadata;
use mambo_engine::{PrefixCacheConfig, human_bytes};
use mambo_runtime::{Engine, LoadOptions, Model, file_bytes, model_view};
use mambo_server::{LocalPage, ModelInfo, Server, ServerConfig};

use crate::amounts::{context_text, counted, short_count};
use crate::args::ModelArgs;
use crate::byte_size::ByteSize;
use crate::log::LogArgs;
use crate::open;
use crate::small_file;
use crate::terminal::put_note;

/// What requests call the built-in model.
const BUILT_IN: &str = "tiny-hybrid";

/// Flags of `mambo serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Which model, and on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Answers generated at the same time; others wait
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub max_sequences: usize,
    /// Memory for prompts that were read, such as 2G, or off
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub prefix_cache: ByteSize,
    /// Folder for conversations that clients save, found again after a restart
    #[arg(long, value_name = "DIR")]
    pub sessions: Option<PathBuf>,
    /// Folder for prompts that the prefix cache has no memory for, and all of it when the server stops
    #[arg(long, value_name = "DIR")]
    pub disk_cache: Option<PathBuf>,
    /// Most bytes of the disk cache
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    pub disk_cache_size: ByteSize,
    /// Requests that may wait; more are told to come back
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub queue: usize,
    /// Connections that may be open at the same time; more are refused
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_connections: usize,
    /// Longest time for one request, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub time_limit: u64,
    /// File with API keys, one on a line, of which requests must carry one
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Origin of pages elsewhere that may use the server, such as https://chat.example; * for all (repeatable)
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Name besides addresses and localhost that the server answers to (repeatable)
    #[arg(long, value_name = "NAME")]
    pub host_name: Vec<String>,
    /// Name that requests call the model; the file's or folder's own if left out (repeatable)
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
    /// Folder of the page that runs a model in the browser's tab, as `cargo xtask web` makes it; by default `local`
    /// beside the program
    #[arg(long, value_name = "DIR")]
    pub local_page: Option<PathBuf>,
    /// TOML file with settings by the names of these flags, such as port = 8080; a flag wins over the file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Runs the command.
pub fn run(args: &ServeArgs) -> Result<()> {
    if args.max_sequences == 0 {
        bail!("--max-sequences is 0; at least one answer must run");
    }
    if args.max_connections == 0 {
        bail!("--max-connections is 0; at least one client must get in");
    }
    if args.time_limit == 0 {
        bail!("--time-limit is 0; a request needs some time");
    }
    if args.name.iter().any(|name| name.trim().is_empty()) {
        bail!("--name is empty; requests must have something to call the model");
    }
    let config = config(args)?;
    args.log.install();
    let model = open::model(args.model.model.as_deref())?;
    let text = model.text()?;
    let spills = config.disk_cache.is_some();
    let prefix_cache =
        args.prefix_cache.bytes().map(|bytes| PrefixCacheConfig { bytes, every: None, spills });
    if prefix_cache.is_none() && (spills || config.sessions.is_some()) {
        bail!("--sessions and --disk-cache fill the prefix cache, and --prefix-cache is off; give it memory");
    }
    let options = LoadOptions {
        sequences: args.max_sequences,
        prefix_cache,
        embeddings: true,
        expert_counts: true,
        ..args.model.load_options()
    };
    let engine = open::engine(&model, args.model.place, &options)?;
    put_note(reserved(&engine, &config.model_names[0], args));
    let info = info(&model, &engine)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // The engine's threads do the work; these only carry it.
        .worker_threads(2)
        .thread_name("http")
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    runtime.block_on(async {
        let server = Server::bind(config, engine, text, info).await?;
        put_note(format_args!("listening on http://{}  (Ctrl-C stops)", server.address()));
        server.run(stop_signal()).await
    })?;
    Ok(())
}

fn config(args: &ServeArgs) -> Result<ServerConfig> {
    let names = match &args.name[..] {
        [] => vec![model_name(args.model.model.as_deref())],
        names => names.to_vec(),
    };
    let api_keys = args.api_key_file.as_deref().map(read_keys).transpose()?.unwrap_or_default();
    Ok(ServerConfig {
        model_names: names,
        api_keys,
        cors_origins: args.cors.clone(),
        host_names: args.host_name.clone(),
        sessions: args.sessions.clone(),
        disk_cache: args.disk_cache.clone().zip(args.disk_cache_size.bytes()),
        queue: args.queue,
        connections: args.max_connections,
        time_limit: Duration::from_secs(args.time_limit),
        log_prompts: args.log.log_prompts,
        local_page: local_page(args.local_page.as_deref())?,
        ..ServerConfig::new(SocketAddr::new(args.host, args.port), "")
    })
}

/// The page that runs a model in the tab: from the folder that is named, or else beside the program if it is there.
fn local_page(folder: Option<&Path>) -> Result<LocalPage> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.join("local"));
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => match beside().filter(|folder| folder.join("index.html").is_file()) {
            Some(folder) => folder,
            None => return Ok(LocalPage::default()),
        },
    };
    LocalPage::read(&folder)
        .with_context(|| format!("cannot read the page in {}; check --local-page", folder.display()))
}

/// What requests call a model: a hub id as it is, a file or folder by its name alone.
fn model_name(name: Option<&str>) -> String {
    let Some(name) = name else { return BUILT_IN.to_owned() };
    let path = Path::new(name);
    if !path.exists() {
        return name.to_owned();
    }
    let stem = if path.is_file() { path.file_stem() } else { path.file_name() };
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn read_keys(path: &Path) -> Result<Vec<String>> {
    let text = small_file::read(path)
        .with_context(|| format!("cannot read the keys in {}; check --api-key-file", path.display()))?;
    let keys: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if keys.is_empty() {
        bail!("{} holds no key; write one on each line, or leave --api-key-file out", path.display());
    }
    Ok(keys)
}

/// What was reserved, with its arithmetic.
fn reserved(engine: &Engine, name: &str, args: &ServeArgs) -> String {
    let layout = engine.cache_layout();
    let sequences = engine.config().max_sequences;
    let context = engine.config().context_tokens;
    let kv = engine.kv_bytes_per_sequence();
    let state = layout.slot_bytes() as u64;
    let cache = match args.prefix_cache.bytes() {
        Some(bytes) => format!("prefix cache {}", human_bytes(bytes)),
        None => "no prefix cache".to_owned(),
    };
    format!(
        "{name}: {} of {} tokens, each {} of keys and values and {} of state: {}; {cache}",
        counted(sequences, "sequence"),
        context_text(context),
        human_bytes(kv),
        human_bytes(state),
        human_bytes((kv + state) * sequences as u64),
    )
}

fn info(model: &Model, engine: &Engine) -> Result<ModelInfo> {
    let is_gguf = matches!(model.checkpoint.metadata(), Metadata::Gguf(_));
    let mut types: Vec<(String, u64)> = Vec::new();
    for tensor in model.checkpoint.tensors() {
        let name = tensor.dtype.to_string();
        match types.iter_mut().find(|(known, _)| *known == name) {
            Some((_, elems)) => *elems += tensor.shape.elems() as u64,
            None => types.push((name, tensor.shape.elems() as u64)),
        }
    }
    let main_type = types.into_iter().max_by_key(|(_, elems)| *elems).map_or(String::new(), |(name, _)| name);
    Ok(ModelInfo {
        architecture: model.spec.architecture.clone(),
        format: if is_gguf { "gguf" } else { "safetensors" }.to_owned(),
        parameter_size: short_count(model.spec.parameters().total).replace(' ', ""),
        quantization: main_type,
        file_bytes: file_bytes(model),
        fingerprint: engine.fingerprint().to_string(),
        view: model_view(model, engine)?,
        vocabulary: model.spec.vocab,
    })
}

/// Ready when somebody wants the server to stop.
async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
