//! The browser UI's files, as they were built and embedded.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::{EmbeddedFile, RustEmbed};

/// Built by Vite, committed, and compressed beforehand.
#[derive(RustEmbed)]
#[folder = "../../web/dist"]
#[allow_missing = true]
struct Built;

/// No script, style, image or connection of another host, and none written into the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; \
form-action 'none'; frame-ancestors 'none'";

/// Files that Vite names by their content never change.
const FOREVER: &str = "public, max-age=31536000, immutable";

/// Everything else is asked for again, and mostly answered with 304.
const FRESH: &str = "no-cache";

/// Serves a file of the UI; its pages are one page, whose fragment says which.
pub(crate) async fn serve(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if method != Method::GET && method != Method::HEAD {
        return (
            StatusCode::METHOD_NOT_ALLOWED,
            [(header::ALLOW, "GET, HEAD")],
        )
            .into_response();
    }
    let path = match uri.path().trim_start_matches('/') {
        "" => "index.html",
        path => path,
    };
    let Some(plain) = Built::get(path) else {
        let text = "there is nothing at this path\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let (file, encoding) = encoded(path, plain, &headers);
    let tag = format!("\"{}\"", hex(&file.metadata.sha256_hash()));
    let mut reply = Response::builder()
        .header(header::CONTENT_TYPE, content_type(path))
        .header(header::ETAG, &tag)
        .header(header::VARY, "accept-encoding")
        .header(
            header::CACHE_CONTROL,
            if path.starts_with("assets/") {
                FOREVER
            } else {
                FRESH
            },
        )
        .header(header::CONTENT_SECURITY_POLICY, POLICY)
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .header(header::REFERRER_POLICY, "no-referrer")
        .header("cross-origin-opener-policy", "same-origin")
        .header("cross-origin-resource-policy", "same-origin");
    if let Some(encoding) = encoding {
        reply = reply.header(header::CONTENT_ENCODING, encoding);
    }
    let known = headers.get(header::IF_NONE_MATCH);
    let reply = if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        reply.status(StatusCode::NOT_MODIFIED).body(Body::empty())
    } else {
        reply.body(Body::from(file.data.into_owned()))
    };
    reply.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// The smallest form of a file that the browser takes.
fn encoded(
    path: &str,
    plain: EmbeddedFile,
    headers: &HeaderMap,
) -> (EmbeddedFile, Option<&'static str>) {
    let accepts = |name: &str| {
        headers
            .get_all(header::ACCEPT_ENCODING)
            .iter()
            .filter_map(|value: &HeaderValue| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|offer| offer.split(';').next().is_some_and(|it| it.trim() == name))
    };
    for (name, suffix) in [("br", "br"), ("gzip", "gz")] {
        if accepts(name)
            && let Some(file) = Built::get(&format!("{path}.{suffix}"))
        {
            return (file, Some(name));
        }
    }
    (plain, None)
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
