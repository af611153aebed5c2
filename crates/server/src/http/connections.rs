//! Connections: how many there may be, how long a client may take to send or to read, and how they end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::patience::Patient;
use crate::config::ServerConfig;
use crate::metrics::Metrics;

/// Longest head of a request, and most headers in it.
const HEAD_BYTES: usize = 64 << 10;
const HEADERS: usize = 100;
/// How long to wait where the system has no file descriptor for a connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(200);
/// What a connection too many is told.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// What connections may take.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    connections: usize,
    head_timeout: Duration,
    read_timeout: Duration,
}

impl Limits {
    pub fn of(config: &ServerConfig) -> Limits {
        let ServerConfig { connections, head_timeout, read_timeout, .. } = *config;
        Limits { connections, head_timeout, read_timeout }
    }
}

/// Counts an open connection as long as it lives.
struct Counted(Arc<Metrics>);

impl Counted {
    fn new(metrics: &Arc<Metrics>) -> Counted {
        metrics.note_connection(1);
        Counted(Arc::clone(metrics))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.note_connection(-1);
    }
}

/// Answers connections until `stop` is ready, then gives those that are busy this long to end.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()>,
    patience: Duration,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_headers(HEADERS)
        .max_header_size(HEAD_BYTES);
    let places = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let ending = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // A client that left before it was accepted is no reason to wait.
                    if !is_of_the_client(&error) {
                        tokio::time::sleep(NO_DESCRIPTOR).await;
                    }
                    continue;
                }
            },
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        // Tokens are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(Patient::new(stream, limits.read_timeout));
        let connection = http.serve_connection(io, TowerToHyperService::new(router.clone()));
        let (connection, counted) = (ending.watch(connection), Counted::new(&metrics));
        tokio::spawn(async move {
            // What goes wrong with a connection is its client's concern, and that one has gone.
            let _ = connection.await;
            drop((place, counted));
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(patience, ending.shutdown()).await;
}

/// Tells a client that there are too many; one that is not ready to hear it is not waited for.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(TOO_MANY);
}

fn is_of_the_client(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
