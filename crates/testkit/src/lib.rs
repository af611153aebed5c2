//! What tests share: the contract runner, and backends that answer late or fail.

pub mod contract;
pub mod mock;
