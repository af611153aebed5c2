//! Which path is answered by what.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Extension, Router};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::answer::{Answer, json_response};
use super::{about, body, guard};
use crate::asked::Asked;
use crate::error::{ApiError, Kind};
use crate::record::Record;
use crate::service::Service;
use crate::{anthropic, live, ollama, openai, openapi, page, sessions, tokens, view};

type Shared = State<Arc<Service>>;

/// A router that knows its paths, so that a test can compare them with the OpenAPI document.
#[derive(Default)]
struct Routes {
    router: Router<Arc<Service>>,
    paths: Vec<&'static str>,
}

impl Routes {
    fn route(self, path: &'static str, method: MethodRouter<Arc<Service>>) -> Routes {
        let Routes { router, mut paths } = self;
        paths.push(path);
        Routes { router: router.route(path, method), paths }
    }
}

/// Every path of the API.
fn routes() -> Routes {
    Routes::default()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(one_model))
        .route("/v1/chat/completions", answered(openai::chat_completions))
        .route("/v1/completions", answered(openai::completions))
        .route("/v1/embeddings", answered(openai::embeddings))
        .route("/v1/responses", answered(openai::responses))
        .route("/v1/messages", answered(anthropic::messages))
        .route("/v1/messages/count_tokens", answered(anthropic::count_tokens))
        .route("/api/chat", answered(ollama::chat))
        .route("/api/generate", answered(ollama::generate))
        .route("/api/embed", answered(ollama::embed))
        .route("/api/embeddings", answered(ollama::old_embed))
        .route("/api/show", answered(ollama::show))
        .route("/api/tags", get(tags))
        .route("/api/version", get(version))
        .route("/api/mambo/model", get(model))
        .route("/api/mambo/live", get(live_samples))
        .route("/sessions", answered(sessions::save).get(session_list))
        .route("/sessions/{name}", delete(remove_session))
        .route("/sessions/{name}/load", post(load_session))
        .route("/tokenize", answered(tokens::tokenize))
        .route("/detokenize", answered(tokens::detokenize))
        .route("/openapi.json", get(document))
}

/// The whole server: the API and the page.
pub(crate) fn router(service: Arc<Service>) -> Router {
    let routes = routes().router;
    routes
        .route("/", get(|| async { page::file("").unwrap_or_default() }))
        .route("/docs", get(|| async { page::file("docs.html").unwrap_or_default() }))
        .route("/local", get(|| async { Redirect::permanent("/local/") }))
        .route("/local/", get(local_page))
        .route("/local/{*name}", get(local_page))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&service), let_in))
        .with_state(service)
}

/// A path whose body is JSON and whose answer a function gives.
fn answered<T, F>(answer: fn(Asked, T) -> F) -> MethodRouter<Arc<Service>>
where
    T: DeserializeOwned + Send + 'static,
    F: Future<Output = Result<Answer, ApiError>> + Send + 'static,
{
    post(
        move |State(service): Shared,
              Extension(record): Extension<Arc<Record>>,
              headers: HeaderMap,
              bytes: Bytes| async move {
            let answered = async {
                let asked = Asked::new(service, record, about::priority(&headers)?, bytes.len());
                let request = match bytes.len() {
                    0..=SMALL_BODY => body::parse::<T>(&bytes)?,
                    _ => asked.work(move |_| body::parse::<T>(&bytes)).await?,
                };
                answer(asked, request).await
            };
            answered.await.map_or_else(failed, Answer::into_response)
        },
    )
}

/// Bodies up to here are parsed where they arrive.
const SMALL_BODY: usize = 64 << 10;

/// Checks who asks, adds what browsers want to know, and dresses refusals.
async fn let_in(State(service): Shared, mut request: Request, next: Next) -> Response {
    let headers = request.headers().clone();
    let dialect = Dialect::of(request.uri().path());
    let is_question = request.method() == Method::OPTIONS;
    // The page holds no secrets, and asks for the key itself.
    let path = request.uri().path();
    let is_open = matches!(path, "/health" | "/docs" | "/openapi.json")
        || is_question
        || path == "/local"
        || path.starts_with("/local/")
        || page::has(path.trim_start_matches('/'));
    let is_routine = is_open || path == "/metrics" || path == "/api/mambo/live";
    let id = about::request_id(&headers).unwrap_or_else(|| service.new_id("req"));
    let record = Arc::new(Record::new(id, request.method().as_str(), path, is_routine));
    request.extensions_mut().insert(Arc::clone(&record));
    let mut response = match guard::check(&service.config, &headers, is_open) {
        Err(error) => failed(error),
        Ok(()) if is_question => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => match body::read(request, service.config.body_bytes).await {
            Ok(request) => next.run(request).await,
            Err(error) => failed(error),
        },
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let allowed = response.headers_mut().remove(header::ALLOW);
        response = dialect.error_response(&error);
        allowed.map(|methods| response.headers_mut().insert(header::ALLOW, methods));
    }
    let out = response.headers_mut();
    if let Some(origin) =
        headers.get(header::ORIGIN).filter(|origin| guard::is_allowed(&service.config, origin))
    {
        out.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        out.insert(header::VARY, HeaderValue::from_static("origin"));
        // Clients send headers of their own, which say nothing to this server.
        if let Some(names) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        out.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("retry-after, x-request-id"),
        );
        out.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, POST, DELETE, OPTIONS"),
        );
    }
    out.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Ids are plain ASCII, whoever made them.
    if let Ok(id) = HeaderValue::from_str(&record.id) {
        out.insert(about::REQUEST_ID, id);
    }
    record.note_status(response.status().as_u16());
    response
}

/// A refusal, which the dialect of its path dresses on the way out.
fn failed(error: ApiError) -> Response {
    let mut response = Response::default();
    response.extensions_mut().insert(error);
    response
}

/// How a path's clients expect errors.
#[derive(Clone, Copy)]
enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    fn of(path: &str) -> Dialect {
        match path {
            path if path.starts_with("/v1/messages") => Dialect::Anthropic,
            // The page reads these, and errors as OpenAI writes them.
            path if path.starts_with("/api/mambo/") => Dialect::OpenAi,
            path if path.starts_with("/api/") => Dialect::Ollama,
            _ => Dialect::OpenAi,
        }
    }

    fn error_response(self, error: &ApiError) -> Response {
        let body = match self {
            Dialect::OpenAi => openai::error_body(error),
            Dialect::Anthropic => anthropic::error_body(error),
            Dialect::Ollama => ollama::error_body(error),
        };
        let status = StatusCode::from_u16(error.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json_response(status, &body);
        if let Some(seconds) = error.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

async fn health(State(service): Shared) -> Response {
    if service.worker.is_alive() && !service.metrics.is_lost() {
        return json_response(StatusCode::OK, &json!({"status": "ok"}));
    }
    failed(ApiError::new(Kind::Unavailable, "the server is stopping, or its engine has ended"))
}

async fn metrics(State(service): Shared) -> Response {
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], service.metrics.text()).into_response()
}

async fn models(State(service): Shared) -> Response {
    json_response(StatusCode::OK, &openai::models(&service))
}

async fn one_model(State(service): Shared, Path(name): Path<String>) -> Response {
    match service.check_model(Some(&name)) {
        Ok(()) => json_response(StatusCode::OK, &openai::models(&service)["data"][0]),
        Err(error) => failed(error),
    }
}

async fn session_list(State(service): Shared) -> Response {
    answer_of(sessions::list(&service))
}

async fn load_session(State(service): Shared, Path(name): Path<String>) -> Response {
    answer_of(sessions::load(&service, &name).await)
}

async fn remove_session(State(service): Shared, Path(name): Path<String>) -> Response {
    answer_of(sessions::remove(&service, &name))
}

fn answer_of(answer: Result<serde_json::Value, ApiError>) -> Response {
    answer.map_or_else(failed, |value| json_response(StatusCode::OK, &value))
}

async fn document() -> Response {
    json_response(StatusCode::OK, &openapi::document())
}

async fn tags(State(service): Shared) -> Response {
    json_response(StatusCode::OK, &ollama::tags(&service))
}

async fn version() -> Response {
    json_response(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}))
}

async fn model(State(service): Shared) -> Response {
    json_response(StatusCode::OK, &view::model(&service))
}

async fn live_samples(State(service): Shared) -> Response {
    live::live(service).await.map_or_else(failed, Answer::into_response)
}

/// The page that runs a model in the tab, file by file.
async fn local_page(State(service): Shared, request: Request) -> Response {
    let name = request.uri().path().strip_prefix("/local/").unwrap_or_default().to_owned();
    let found = service.config.local_page.answer(&name, request.headers());
    found.unwrap_or_else(|| failed(ApiError::new(Kind::NotFound, format!("there is no `/local/{name}`"))))
}

/// What no route has is a file of the page, or nothing.
async fn not_found(request: Request) -> Response {
    let name = request.uri().path().trim_start_matches('/');
    if let Some(file) = Some(name).filter(|_| request.method() == Method::GET).and_then(page::file) {
        return file;
    }
    let message = format!("there is no `{}`", request.uri().path());
    failed(ApiError::new(Kind::NotFound, message))
}

async fn wrong_method(request: Request) -> Response {
    let message = format!("`{}` does not take {}", request.uri().path(), request.method());
    failed(ApiError::new(Kind::Method, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_in_the_document() {
        let document = openapi::document();
        let mut described: Vec<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let mut served = routes().paths;
        described.sort_unstable();
        served.sort_unstable();
        assert_eq!(
            served, described,
            "the router on the left, the document on the right: see `operations` of each dialect"
        );
    }

    #[test]
    fn the_page_reads_what_its_paths_refuse() {
        let refused = Dialect::of("/api/mambo/live").error_response(&ApiError::new(Kind::Busy, "later"));
        let body = futures_util::FutureExt::now_or_never(axum::body::to_bytes(refused.into_body(), 1000));
        let body: serde_json::Value = serde_json::from_slice(&body.unwrap().unwrap()).unwrap();
        assert_eq!(body["error"]["message"], "later");
    }
}
