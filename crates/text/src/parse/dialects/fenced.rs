//! A fence of `tool_code` with calls in Python's notation: Gemma, where its template asks for them.

use super::{Arguments, Calls, End, Form, Opening, lfm2};

pub(super) static FORM: Form = Form {
    open: "```tool_code",
    end: End::Tag("```"),
    inner: &[],
    stops: &[],
    stands_bare: false,
    is_written_in: |template| template.contains("```tool_code"),
    begins: |text| match text.chars().next() {
        Some(c) if !c.is_whitespace() => Opening::No,
        _ => lfm2::begins(text),
    },
    read: lfm2::read,
    calls: Calls {
        before: "```tool_code\n",
        call: ["", "(", ")"],
        arguments: Arguments::Keywords,
        between: "\n",
        after: "\n```",
    },
};
