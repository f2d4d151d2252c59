//! A static file server for localhost: cross-origin isolated, with byte ranges.

use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tiny_http::{Header, Method, Request, Response, Server, StatusCode};

/// Ports tried from the wanted one upwards.
const PORTS: u16 = 20;
/// Requests served at the same time.
const THREADS: usize = 4;

/// Without these two the page gets no shared memory and runs on one thread.
const HEADERS: [(&str, &str); 5] = [
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Embedder-Policy", "require-corp"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Accept-Ranges", "bytes"),
    ("Cache-Control", "no-cache"),
];

/// Folders under URL prefixes; the first prefix that fits wins.
pub type Mounts = Vec<(&'static str, PathBuf)>;

/// Serves for ever and prints the address.
pub fn run(mounts: Mounts, port: u16) -> Result<()> {
    let server = Arc::new(listen(port)?);
    let address = server.server_addr().to_ip().context("not an IP address")?;
    println!("\n  lowbit is at http://localhost:{}/\n  Ctrl-C stops it.", address.port());
    let mounts = Arc::new(mounts);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (server, mounts) = (server.clone(), mounts.clone());
            std::thread::spawn(move || {
                for request in server.incoming_requests() {
                    // A client that goes away in the middle is not our error.
                    answer(request, &mounts).ok();
                }
            })
        })
        .collect();
    threads.into_iter().try_for_each(|thread| thread.join()).map_err(|_| anyhow!("a server thread died"))
}

fn listen(port: u16) -> Result<Server> {
    let mut last = None;
    for port in port..=port.saturating_add(PORTS) {
        match Server::http(("127.0.0.1", port)) {
            Ok(server) => return Ok(server),
            Err(error) => last = Some(error),
        }
    }
    Err(anyhow!("no free port from {port} on: {}", last.map(|e| e.to_string()).unwrap_or_default()))
}

fn answer(request: Request, mounts: &Mounts) -> Result<()> {
    let Some(path) = file_of(request.url(), mounts) else {
        return Ok(request.respond(Response::from_string("not found\n").with_status_code(404))?);
    };
    let mut file = File::open(&path)?;
    let size = file.metadata()?.len();
    let wanted = request.headers().iter().find(|h| h.field.equiv("Range")).map(|h| h.value.as_str());
    let mut headers: Vec<_> = HEADERS.iter().filter_map(|(name, value)| header(name, value)).collect();
    headers.extend(header("Content-Type", mime(&path)));

    let (status, range) = match wanted.map(|text| parse_range(text, size)) {
        None | Some(Wanted::All) => (200, 0..size),
        Some(Wanted::Part(range)) => {
            headers
                .extend(header("Content-Range", &format!("bytes {}-{}/{size}", range.start, range.end - 1)));
            (206, range)
        }
        Some(Wanted::Outside) => {
            headers.extend(header("Content-Range", &format!("bytes */{size}")));
            (416, 0..0)
        }
    };
    file.seek(SeekFrom::Start(range.start))?;
    let length = range.end - range.start;
    let body: Box<dyn Read + Send> = if *request.method() == Method::Head {
        Box::new(std::io::empty())
    } else {
        Box::new(file.take(length))
    };
    let length = usize::try_from(length).ok();
    // The threshold keeps Content-Length on large files: the page shows progress by it.
    let response =
        Response::new(StatusCode(status), headers, body, length, None).with_chunked_threshold(usize::MAX);
    Ok(request.respond(response)?)
}

fn header(name: &str, value: &str) -> Option<Header> {
    Header::from_bytes(name, value).ok()
}

/// The file that a URL means, if it exists and lies inside its folder.
fn file_of(url: &str, mounts: &Mounts) -> Option<PathBuf> {
    let path = url.split(['?', '#']).next()?;
    let (prefix, folder) = mounts.iter().find(|(prefix, _)| path.starts_with(prefix))?;
    let mut file = folder.clone();
    for part in path[prefix.len()..].split('/').filter(|part| !part.is_empty()) {
        // One plain name: no "..", no root, no drive letter, no escape.
        let plain = Path::new(part).file_name().is_some_and(|name| name == part);
        if !plain || part.contains(['\\', '%', ':']) {
            return None;
        }
        file.push(part);
    }
    if file.is_dir() {
        file.push("index.html");
    }
    file.is_file().then_some(file)
}

#[derive(Debug, PartialEq)]
enum Wanted {
    All,
    Part(Range<u64>),
    Outside,
}

/// Reads `bytes=a-b`, `bytes=a-` and `bytes=-n`. Several ranges or another unit mean the whole file, as HTTP allows.
fn parse_range(text: &str, size: u64) -> Wanted {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::All;
    };
    let range = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.trim().is_empty() => first..size,
        (Err(_), Ok(count)) if first.trim().is_empty() => size.saturating_sub(count)..size,
        _ => return Wanted::All,
    };
    if range.is_empty() { Wanted::Outside } else { Wanted::Part(range) }
}

fn mime(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("wasm") => "application/wasm",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("webmanifest") => "application/manifest+json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("bytes=0-9", 100), Wanted::Part(0..10));
        assert_eq!(parse_range("bytes=90-", 100), Wanted::Part(90..100));
        assert_eq!(parse_range("bytes=-5", 100), Wanted::Part(95..100));
        assert_eq!(parse_range("bytes=90-999", 100), Wanted::Part(90..100));
        assert_eq!(parse_range("bytes=100-", 100), Wanted::Outside);
        assert_eq!(parse_range("bytes=9-1", 100), Wanted::All);
        assert_eq!(parse_range("bytes=0-1,5-6", 100), Wanted::All);
        assert_eq!(parse_range("lines=0-1", 100), Wanted::All);
    }

    #[test]
    fn only_files_inside_the_folder_are_served() {
        let mounts = vec![("/x/", crate::root().join("xtask/src")), ("/", crate::root().join("xtask"))];
        assert_eq!(file_of("/Cargo.toml?v=1", &mounts), Some(crate::root().join("xtask/Cargo.toml")));
        assert_eq!(file_of("/x/main.rs", &mounts), Some(crate::root().join("xtask/src/main.rs")));
        for url in
            ["/../Cargo.toml", "/src/../../Cargo.toml", "/%2e%2e/Cargo.toml", "/src", "/nothing.txt", "//"]
        {
            assert_eq!(file_of(url, &mounts), None, "{url}");
        }
    }
}
