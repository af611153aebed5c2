//! What a server is told to be.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::local_page::LocalPage;

/// The settings of a server; the engine's are chosen when the model is loaded.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen.
    pub address: SocketAddr,
    /// Names the model answers to, the first of which it is listed under.
    pub model_names: Vec<String>,
    /// Keys of which every request must carry one; none lets everybody in.
    pub api_keys: Vec<String>,
    /// Origins of pages elsewhere that may call this server from a browser.
    pub cors_origins: Vec<String>,
    /// Names besides addresses and `localhost` that requests may give as their host.
    pub host_names: Vec<String>,
    /// Requests that may wait for a slot; more are refused with 429.
    pub queue: usize,
    /// Longest time a request may take from its arrival to its last token.
    pub time_limit: Duration,
    /// Largest body of a request.
    pub body_bytes: usize,
    /// How long streams may go on after the server was told to stop.
    pub grace: Duration,
    /// Connections that may be open at the same time; more are answered 503 and closed.
    pub connections: usize,
    /// How long a client may take to send the head of a request, or to send none on an open connection.
    pub head_timeout: Duration,
    /// How long a client may read nothing of its answer.
    pub read_timeout: Duration,
    /// Folder of the sessions that clients save.
    pub sessions: Option<PathBuf>,
    /// Folder for what the prefix cache drops, and its most bytes; the engine's cache must spill.
    pub disk_cache: Option<(PathBuf, u64)>,
    /// Whether prompts and answers are logged.
    pub log_prompts: bool,
    /// The page that runs a model in the browser's tab.
    pub local_page: LocalPage,
}

impl ServerConfig {
    /// A server for one model on this address, for this machine alone.
    pub fn new(address: SocketAddr, model_name: impl Into<String>) -> Self {
        ServerConfig {
            address,
            model_names: vec![model_name.into()],
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            host_names: Vec::new(),
            queue: 256,
            time_limit: Duration::from_secs(30 * 60),
            body_bytes: 32 << 20,
            grace: Duration::from_secs(20),
            connections: 512,
            head_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(30),
            sessions: None,
            disk_cache: None,
            log_prompts: false,
            local_page: LocalPage::default(),
        }
    }
}
