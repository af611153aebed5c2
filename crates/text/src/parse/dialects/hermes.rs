//! `<tool_call>{"name": "f", "arguments": {..}}</tool_call>`: Hermes, and those who write like it.

use super::{Arguments, Calls, End, Form, blocks};

pub(super) static FORM: Form = Form {
    open: "<tool_call>",
    end: End::Tag("</tool_call>"),
    inner: &[],
    stops: &[],
    stands_bare: false,
    is_written_in: |template| template.contains("<tool_call>"),
    // Models know both notations between these tags, whichever their template writes.
    begins: blocks::begins,
    read: blocks::read,
    calls: Calls {
        before: "",
        call: ["<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"],
        arguments: Arguments::Json,
        between: "\n",
        after: "",
    },
};
