//! What tests share: the contract runner and helpers for golden files.

pub mod contract;
