//! Fields that clients send as `null` where they mean nothing.

use serde::{Deserialize, Deserializer};

/// A value, or the default for `null`.
pub(crate) fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
