//! The OpenAPI document: what every path takes and answers, from the types that read requests. Each dialect lists its
//! own paths; a path of the router that none lists fails a test of the router.

use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::{anthropic, http, live, ollama, openai, sessions, tokens};

/// A path with its method, for the document.
pub(crate) struct Operation {
    path: &'static str,
    method: &'static str,
    body: Map<String, Value>,
    answers: Map<String, Value>,
    schemas: Vec<(String, RefOr<Schema>)>,
}

impl Operation {
    /// A path that answers by itself.
    pub fn get(path: &'static str, summary: &str) -> Operation {
        let mut body = Map::new();
        body.insert("summary".into(), summary.into());
        Operation { path, method: "get", body, answers: Map::new(), schemas: Vec::new() }
    }

    /// The same by another method, without a body.
    pub fn by(self, method: &'static str) -> Operation {
        Operation { method, ..self }
    }

    /// A path that takes a body of JSON, such as the example.
    pub fn post<T: ToSchema>(path: &'static str, summary: &str, example: Value) -> Operation {
        let mut operation = Operation { method: "post", ..Operation::get(path, summary) };
        let schema = operation.schema::<T>();
        let content = json!({"application/json": {"schema": schema, "example": example}});
        operation.body.insert("requestBody".into(), json!({"required": true, "content": content}));
        operation
    }

    /// More about it.
    pub fn describe(mut self, text: &str) -> Operation {
        self.body.insert("description".into(), text.into());
        self
    }

    /// A part of its path.
    pub fn parameter(mut self, name: &str, text: &str) -> Operation {
        let schema = json!({"type": "string", "minLength": 1});
        let parameter =
            json!({"name": name, "in": "path", "required": true, "description": text, "schema": schema});
        self.body.insert("parameters".into(), json!([parameter]));
        self
    }

    /// One object of JSON as the answer.
    pub fn answers<T: ToSchema>(mut self) -> Operation {
        let schema = self.schema::<T>();
        self.answers.insert("application/json".into(), json!({"schema": schema}));
        self
    }

    /// Events or lines of this kind as the answer, each of them an object.
    pub fn streams<T: ToSchema>(mut self, kind: &str) -> Operation {
        let item = self.schema::<T>();
        self.answers.insert(kind.into(), json!({"schema": {"type": "string"}, "x-item-schema": item}));
        self
    }

    /// Text of this kind as the answer.
    pub fn answers_text(mut self, kind: &str) -> Operation {
        self.answers.insert(kind.into(), json!({"schema": {"type": "string"}}));
        self
    }

    /// A reference to a type, which the document will hold.
    fn schema<T: ToSchema>(&mut self) -> Value {
        self.schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(&mut self.schemas);
        json!({"$ref": format!("#/components/schemas/{}", T::name())})
    }
}

/// What a dialect refuses requests with.
pub(crate) struct Refusals(Value, Vec<(String, RefOr<Schema>)>);

impl Refusals {
    pub fn of<T: ToSchema>() -> Refusals {
        let mut any = Operation::get("", "");
        let schema = any.schema::<T>();
        Refusals(json!({"application/json": {"schema": schema}}), any.schemas)
    }

    /// The answers to requests that are refused, each with its reason.
    fn answers(&self) -> Map<String, Value> {
        let refusals = [
            (
                "4XX",
                "Refused, and the message says why: 400 a wrong field, 401 no API key, 403 a page elsewhere, \
                404 no such model or path, 405 another method, 409 it does not go with the model, 413 too large, 429 too many wait (see `Retry-After`).",
            ),
            (
                "5XX",
                "Failed: 500 the server's fault, 503 it is stopping or its GPU has no memory or is lost, 504 the time was over, 507 the disk is full.",
            ),
        ];
        let answer = |(status, text): (&str, &str)| {
            (status.to_owned(), json!({"description": text, "content": self.0}))
        };
        refusals.into_iter().map(answer).collect()
    }
}

const ABOUT: &str = "A language model on your own machine, in the dialects of OpenAI, Anthropic and Ollama. \
    Fields that are not listed are ignored. Where the server has API keys, send `Authorization: Bearer KEY` or \
    `x-api-key: KEY`.";

/// The whole document.
pub(crate) fn document() -> Value {
    let groups = [
        ("OpenAI", openai::operations(), openai::refusals()),
        ("Anthropic", anthropic::operations(), anthropic::refusals()),
        ("Ollama", ollama::operations(), ollama::refusals()),
        ("Tokens", tokens::operations(), openai::refusals()),
        ("Sessions", sessions::operations(), openai::refusals()),
        ("Server", http::operations(), openai::refusals()),
        ("Model", live::operations(), openai::refusals()),
    ];
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    let tags: Vec<Value> = groups.iter().map(|(name, ..)| json!({"name": name})).collect();
    for (tag, operations, refusals) in groups {
        for operation in operations {
            let Operation { path, method, mut body, answers, schemas: own } = operation;
            let mut responses = Map::new();
            responses.insert("200".into(), json!({"description": "The answer.", "content": answers}));
            responses.extend(refusals.answers());
            let name = format!("{method}_{}", path.trim_matches('/').replace(['/', '{', '}'], "_"));
            body.insert("tags".into(), json!([tag]));
            body.insert("operationId".into(), name.into());
            body.insert("responses".into(), responses.into());
            // A path may have several methods.
            paths.entry(path).or_insert_with(|| json!({}))[method] = body.into();
            schemas.extend(own.into_iter().map(|(name, schema)| (name, json!(schema))));
        }
        schemas.extend(refusals.1.into_iter().map(|(name, schema)| (name, json!(schema))));
    }
    let keys = json!({
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    });
    json!({
        "openapi": "3.1.0",
        "info": {"title": "mambo", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT},
        "tags": tags, "paths": paths, "security": [{}, {"bearer": []}, {"key": []}],
        "components": {"schemas": schemas, "securitySchemes": keys},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                found.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50, "{found:?}");
        for reference in found {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_field_of_a_request_is_described() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas.iter().filter(|(name, _)| name.ends_with("Request")) {
            let parts = schema["allOf"].as_array().into_iter().flatten().chain([schema]);
            for (field, one) in parts.filter_map(|part| part["properties"].as_object()).flatten() {
                // A reference carries its own description, beside `null` where the field may be left out.
                assert!(one.to_string().contains("\"description\""), "{name}.{field} has no description");
            }
        }
    }
}
