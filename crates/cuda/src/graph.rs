//! Captured work: launches that were queued once, replayed as one.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use mambo_kernel::BackendError;

use crate::driver::{Context, Stream, check};

/// Launches that can be replayed.
pub(crate) struct Graph {
    raw: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `queue` queues on the stream, where nothing of it runs.
    pub fn capture(
        context: &Arc<Context>,
        stream: &Stream,
        queue: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<Graph, BackendError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        check(unsafe { sys::cuStreamBeginCapture_v2(stream.raw, mode) }, "beginning a capture")?;
        let queued = queue();
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is being captured. It is ended even if queueing failed, or the stream stays unusable.
        let ended = check(unsafe { sys::cuStreamEndCapture(stream.raw, &mut graph) }, "ending a capture");
        let mut raw = ptr::null_mut();
        let made = queued.and(ended).and_then(|()| {
            // SAFETY: the graph was captured.
            check(unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) }, "making a graph")
        });
        if !graph.is_null() {
            // SAFETY: it was captured and is destroyed once; what was made of it stays.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        made?;
        let graph = Graph { raw, context: Arc::clone(context) };
        // SAFETY: both live. The first replay does not pay for the upload then.
        check(unsafe { sys::cuGraphUpload(graph.raw, stream.raw) }, "uploading a graph")?;
        Ok(graph)
    }

    /// Queues all of it.
    pub fn launch(&self, stream: &Stream) -> Result<(), BackendError> {
        // SAFETY: both live.
        check(unsafe { sys::cuGraphLaunch(self.raw, stream.raw) }, "launching a step")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was made and is destroyed once; the driver waits for replays that still run.
            unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
