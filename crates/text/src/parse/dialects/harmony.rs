//! Harmony, the format of gpt-oss: every message names its channel, and a call is a message to a function.
//! `parse/harmony.rs` reads the stream, in which calls have no tag of their own.

use super::{Arguments, Body, Calls, End, Form, Opening};
use crate::parse::harmony::TAGS;

pub(super) static FORM: Form = Form {
    open: "",
    end: End::Value,
    inner: &TAGS,
    stops: &["<|return|>", "<|call|>"],
    stands_bare: false,
    is_written_in: |template| template.contains("<|channel|>") && template.contains("<|message|>"),
    begins: |_| Opening::No,
    read: |_, _| Body::Broken,
    calls: Calls {
        before: "",
        call: ["<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>"],
        arguments: Arguments::Json,
        between: "<|start|>assistant",
        after: "",
    },
};
