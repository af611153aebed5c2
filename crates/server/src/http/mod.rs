//! HTTP: connections, the router, who is let in, bodies, streams. Dialects know none of it.

mod about;
mod answer;
mod body;
mod connections;
mod describe;
mod guard;
mod patience;
mod router;

pub(crate) use answer::{Answer, EventSender};
pub(crate) use body::parse;
pub(crate) use connections::{Limits, serve};
pub(crate) use describe::operations;
pub(crate) use router::router;
