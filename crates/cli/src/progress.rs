//! Progress on stderr, where a person is looking.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A turning sign beside `message`, for work of unknown length.
pub fn spinner(message: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A bar over `total` bytes.
pub fn bytes(message: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(message);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}") {
        bar.set_style(style);
    }
    bar
}
