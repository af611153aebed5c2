//! The server's own paths for the OpenAPI document.
#![allow(dead_code, reason = "types that describe JSON; nothing makes values of them")]

use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::openapi::Operation;

/// How the server is.
#[derive(ToSchema)]
struct Health {
    /// `ok`.
    status: String,
}

/// A document of OpenAPI 3.1.
#[derive(ToSchema)]
struct OpenApiDocument {
    /// `3.1.0`.
    openapi: String,
    /// Every path.
    paths: Map<String, Value>,
}

/// These paths for the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/health", "Whether the server answers").answers::<Health>(),
        Operation::get("/metrics", "Counters for Prometheus, under vLLM's names")
            .answers_text("application/openmetrics-text"),
        Operation::get("/openapi.json", "This document").answers::<OpenApiDocument>(),
    ]
}
