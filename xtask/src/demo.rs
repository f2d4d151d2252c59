//! `cargo xtask demo`: from a bare checkout to the chat site in a browser.

use anyhow::Result;

/// The task.
pub fn run(args: &mut lexopt::Parser) -> Result<()> {
    let (mut serve, mut port) = (true, 8080);
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Long("no-serve") => serve = false,
            lexopt::Arg::Long("port") => port = args.value()?.to_string_lossy().parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    let site = crate::root().join("web/demo/dist");
    if serve { crate::serve::run(vec![("/", site)], port) } else { Ok(()) }
}
