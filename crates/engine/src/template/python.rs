//! What templates expect of Python: how values are printed, and JSON as its `json` module writes it.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

/// Values within values at most.
const MAX_DEPTH: usize = 64;

/// Prints a value of `{{ .. }}`.
pub(super) fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// The filter `tojson(indent=None)`: nothing is escaped for HTML, the order of keys is kept.
pub(super) fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accepted with the values that `transformers` has by default.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    let mut json = String::new();
    write(state, value, indent.map(|n| n.min(16)), 0, &mut json)?;
    state.consume_fuel(json.len() as u64 / 64)?;
    Ok(Value::from(json))
}

/// Each value is a step: a list that shares its parts can be longer than any memory.
fn write(
    state: &State,
    value: &Value,
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    state.consume_fuel(1)?;
    if depth > MAX_DEPTH {
        return Err(problem(format!("tojson: values are nested deeper than {MAX_DEPTH}")));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out)?,
        ValueKind::Seq | ValueKind::Iterable => {
            list(value.try_iter()?, ['[', ']'], indent, depth, out, |item, out| {
                write(state, &item, indent, depth + 1, out)
            })?;
        }
        ValueKind::Map => list(value.try_iter()?, ['{', '}'], indent, depth, out, |key, out| {
            quote(&key.to_string(), out)?;
            out.push_str(": ");
            write(state, &value.get_item(&key)?, indent, depth + 1, out)
        })?,
        kind => return Err(problem(format!("tojson: {kind} has no JSON"))),
    }
    Ok(())
}

fn list(
    items: impl Iterator<Item = Value>,
    brackets: [char; 2],
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
    mut each: impl FnMut(Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let mut is_empty = true;
    out.push(brackets[0]);
    for item in items {
        if !is_empty {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        is_empty = false;
        new_line(depth + 1, out);
        each(item, out)?;
    }
    if !is_empty {
        new_line(depth, out);
    }
    out.push(brackets[1]);
    Ok(())
}

fn quote(text: &str, out: &mut String) -> Result<(), Error> {
    out.push_str(&serde_json::to_string(text).map_err(|e| problem(e.to_string()))?);
    Ok(())
}

fn problem(text: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}
