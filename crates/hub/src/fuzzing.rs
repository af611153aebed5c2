//! What a hub sends, without a network, for the fuzz target: it is read or refused, nothing panics, and nothing that was
//! read leads out of the cache. No part of the crate's interface.

use std::collections::BTreeMap;

use ureq::http::{HeaderMap, HeaderName, HeaderValue};

use crate::checksum::Checksum;
use crate::client::{join, origin, retry_after};
use crate::reference::is_safe_path;
use crate::{Listing, Reference, pick, usual};

/// Reads a listing, chooses as a user would, and follows an index of shards.
pub fn listing(answer: &str, index: &str, asked: &str) {
    let reference: Reference = "a/b".parse().expect("the reference is one");
    let Ok(listing) = Listing::parse(&reference, answer) else { return };
    assert!(listing.files.iter().all(|file| is_safe_path(&file.path)), "{answer}");
    let Ok(mut choices) = listing.choices() else { return };
    let _ = pick("a/b", &choices, asked).map_err(|error| error.to_string());
    let _ = usual("a/b", &choices, || false).map_err(|error| error.to_string());
    let sizes: BTreeMap<&str, u64> = listing.sizes().collect();
    for choice in &mut choices {
        let _ = choice.follow_index(index, &sizes);
        assert!(choice.files.iter().all(|file| sizes.contains_key(file.as_str())), "{answer}");
        let _ = choice.described();
    }
}

/// Reads the headers of an answer.
pub fn headers<'h>(given: impl Iterator<Item = (&'h str, &'h str)>) {
    let headers: HeaderMap = given
        .filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?))
        })
        .collect();
    let _ = retry_after(&headers);
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    for name in ["etag", "x-linked-etag"] {
        let checksum = text(name).and_then(Checksum::parse);
        assert!(checksum.is_none_or(|sum| sum.digits().bytes().all(|b| b.is_ascii_hexdigit())));
    }
    for url in ["https://hub.test/a/b", "http://127.0.0.1:80"] {
        let next = text("location").and_then(|location| join(url, location));
        assert!(next.is_none_or(|next| origin(&next).is_some()), "{url}");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/src/json_changes.rs"]
mod json_changes;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    #[test]
    fn changed_answers_of_a_hub_are_read_or_refused() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/hub");
        for entry in fs::read_dir(folder).unwrap() {
            let good: Value = serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap();
            for round in 0..2000 {
                let mut document = good.clone();
                json_changes::change(&mut document, round);
                let asked = document["asked"].as_str().unwrap_or_default();
                listing(&document["listing"].to_string(), &document["index"].to_string(), asked);
                let given = document["headers"].as_object().into_iter().flatten();
                headers(given.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))));
            }
        }
    }
}
