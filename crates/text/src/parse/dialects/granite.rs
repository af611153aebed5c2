//! `<|tool_call|>[{"name": "f", "arguments": {..}}]`: Granite 3. Granite 4 writes as Hermes does.

use super::{Arguments, Calls, End, Form, json};

pub(super) static FORM: Form = Form {
    open: "<|tool_call|>",
    end: End::Value,
    inner: &[],
    stops: &[],
    stands_bare: false,
    is_written_in: |template| template.contains("<|tool_call|>"),
    begins: json::begins,
    read: json::read,
    calls: Calls {
        before: "<|tool_call|>[",
        call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
        arguments: Arguments::Json,
        between: ", ",
        after: "]",
    },
};
