//! Starting and stopping.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use mambo_runtime::{Engine, ModelText, RuntimeError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::config::ServerConfig;
use crate::disk::Disk;
use crate::grammar::Grammars;
use crate::http::{self, Limits, router};
use crate::info::ModelInfo;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::time::unix_seconds;
use crate::worker::Worker;

/// Prompts that are rendered and cut into tokens at the same time. Few: the engine wants the cores.
const TEXT_THREADS: usize = 4;
/// Time for the last bytes of answers that were ended.
const LAST_BYTES: Duration = Duration::from_secs(3);

/// Why a server cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {source}; choose another port or host")]
    Listen {
        /// Where it was to listen.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A folder of snapshots cannot be used.
    #[error("cannot keep snapshots: {0}")]
    Disk(RuntimeError),
    /// The system refused a thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
}

/// A server that listens and has not answered yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
    /// Writes what the prefix cache drops, and ends after the worker.
    writer: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and takes the engine over.
    pub async fn bind(
        config: ServerConfig,
        engine: Engine,
        text: ModelText,
        info: ModelInfo,
    ) -> Result<Server, ServeError> {
        let address = config.address;
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let metrics = Arc::new(Metrics::new());
        let grammars = Grammars::new(text.tokenizer(), text.stop_tokens(), info.vocabulary);
        let context_tokens = engine.config().context_tokens;
        let embedding_size = engine.embedding_size();
        let (disk, writer) = Disk::open(&config, engine.fingerprint()).map_err(ServeError::Disk)?;
        let (spill, writer) = writer.map(|writer| (writer.spill, writer.thread)).unzip();
        let worker =
            Worker::start(engine, config.queue, Arc::clone(&metrics), spill).map_err(ServeError::Thread)?;
        let started = unix_seconds();
        let next_id = AtomicU64::new(0);
        let service = Service {
            config,
            text,
            worker,
            grammars,
            metrics,
            info,
            context_tokens,
            embedding_size,
            started,
            next_id,
            watchers: Default::default(),
            responses: Default::default(),
            disk,
            text_places: Arc::new(Semaphore::new(TEXT_THREADS)),
        };
        Ok(Server { listener, address, service: Arc::new(service), writer })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is ready, then lets running answers finish for a while.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
        self.answer(Box::pin(stop)).await
    }

    /// The same for one type of future and as one: what it does is compiled here, not with each program that runs it.
    fn answer(
        self,
        stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> Pin<Box<dyn Future<Output = Result<(), ServeError>> + Send>> {
        Box::pin(async move {
            let grace = self.service.config.grace;
            let worker = self.service.worker.clone();
            let limits = Limits::of(&self.service.config);
            let stop = async move {
                stop.await;
                tracing::info!(grace_s = grace.as_secs(), "stopping");
                worker.stop(grace);
            };
            tracing::info!(address = %self.address, model = self.service.model_name(), "listening");
            let open = Arc::clone(&self.service.metrics);
            http::serve(self.listener, router(self.service), limits, open, stop, grace + LAST_BYTES).await;
            if let Some(writer) = self.writer {
                let _ = tokio::task::spawn_blocking(|| writer.join()).await;
            }
            tracing::info!("stopped");
            Ok(())
        })
    }
}
