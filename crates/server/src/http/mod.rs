//! HTTP: the router, who is let in, bodies, streams. Dialects know none of it.

mod answer;
mod body;
mod guard;
mod router;

pub(crate) use answer::{Answer, EventSender};
pub(crate) use router::router;
