//! Errors as the page sees them: `{code, message}`.

use std::sync::Mutex;
use wasm_bindgen::JsValue;

/// An error of any crate with its stable code.
#[derive(Debug)]
pub struct Failure {
    code: &'static str,
    message: String,
}

impl Failure {
    /// An error that arises in this crate.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<lowbit_core::Error> for Failure {
    fn from(error: lowbit_core::Error) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

impl From<lowbit_engine::Error> for Failure {
    fn from(error: lowbit_engine::Error) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

impl From<Failure> for JsValue {
    fn from(failure: Failure) -> Self {
        let object = js_sys::Object::new();
        for (key, value) in [("code", failure.code), ("message", failure.message.as_str())] {
            // Setting a property of a fresh plain object cannot fail.
            let _ = js_sys::Reflect::set(&object, &key.into(), &value.into());
        }
        object.into()
    }
}

static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the message and the place of a panic before it traps.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|info| {
        if let Ok(mut last) = LAST_PANIC.try_lock() {
            *last = Some(info.to_string());
        }
    }));
}

/// What [`keep_panics`] kept.
pub fn last_panic() -> Option<String> {
    LAST_PANIC.try_lock().ok()?.take()
}
