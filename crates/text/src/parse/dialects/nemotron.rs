//! `<TOOLCALL>[{"name": "f", "arguments": {..}}]</TOOLCALL>`: Nemotron v2.

use super::{Arguments, Calls, End, Form, blocks};

pub(super) static FORM: Form = Form {
    open: "<TOOLCALL>",
    end: End::Tag("</TOOLCALL>"),
    inner: &[],
    stops: &[],
    stands_bare: false,
    is_written_in: |template| template.contains("<TOOLCALL>"),
    begins: blocks::begins,
    read: blocks::read,
    calls: Calls {
        before: "<TOOLCALL>[",
        call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
        arguments: Arguments::Json,
        between: ", ",
        after: "]</TOOLCALL>",
    },
};
