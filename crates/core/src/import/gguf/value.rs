//! Metadata values.

use super::cursor::{Cursor, Stop};
use std::fmt;

/// A metadata value; widths are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// u8, u16, u32, u64
    Unsigned(u64),
    /// i8, i16, i32, i64
    Signed(i64),
    /// f32, f64
    Float(f64),
    /// bool
    Bool(bool),
    /// string
    Text(String),
    /// array
    Array(Array),
}

/// A metadata array.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Of u8, u16, u32, u64.
    Unsigned(Vec<u64>),
    /// Of i8, i16, i32, i64.
    Signed(Vec<i64>),
    /// Of f32, f64.
    Float(Vec<f64>),
    /// Of bool.
    Bool(Vec<bool>),
    /// Of strings.
    Text(Vec<String>),
    /// Of arrays.
    Nested(Vec<Array>),
}

/// Arrays of arrays of ... deeper than this are an attack.
const MAX_DEPTH: usize = 4;

const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;

type Result<T> = std::result::Result<T, Stop>;

pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Value> {
    let ty = cursor.u32(key)?;
    match ty {
        TYPE_STRING => Ok(Value::Text(cursor.string(key)?.to_owned())),
        TYPE_ARRAY => Ok(Value::Array(array(cursor, key, 0)?)),
        _ => scalar(cursor, key, ty),
    }
}

fn scalar(cursor: &mut Cursor<'_>, key: &str, ty: u32) -> Result<Value> {
    Ok(match ty {
        0 => Value::Unsigned(cursor.array::<1>(key)?[0].into()),
        1 => Value::Signed(i8::from_le_bytes(cursor.array(key)?).into()),
        2 => Value::Unsigned(u16::from_le_bytes(cursor.array(key)?).into()),
        3 => Value::Signed(i16::from_le_bytes(cursor.array(key)?).into()),
        4 => Value::Unsigned(u32::from_le_bytes(cursor.array(key)?).into()),
        5 => Value::Signed(i32::from_le_bytes(cursor.array(key)?).into()),
        6 => Value::Float(f32::from_le_bytes(cursor.array(key)?).into()),
        7 => match cursor.array::<1>(key)?[0] {
            byte @ (0 | 1) => Value::Bool(byte == 1),
            byte => return cursor.fail(key, format!("is a bool of value {byte}, expected 0 or 1")),
        },
        10 => Value::Unsigned(u64::from_le_bytes(cursor.array(key)?)),
        11 => Value::Signed(i64::from_le_bytes(cursor.array(key)?)),
        12 => Value::Float(f64::from_le_bytes(cursor.array(key)?)),
        _ => return cursor.fail(key, format!("has the unknown value type {ty}; the file is damaged")),
    })
}

/// Bytes of a scalar of type `ty`; the least that a string or an array takes.
fn least_size(ty: u32) -> u64 {
    match ty {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        TYPE_ARRAY => 12,
        _ => 8,
    }
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array> {
    if depth == MAX_DEPTH {
        return cursor.fail(key, format!("nests arrays deeper than {MAX_DEPTH}; the file is damaged"));
    }
    let ty = cursor.u32(key)?;
    let count = cursor.u64(key)?;
    cursor.check_count(key, count, least_size(ty))?;
    match ty {
        0 | 2 | 4 | 10 => fill(count, || match scalar(cursor, key, ty)? {
            Value::Unsigned(x) => Ok(x),
            _ => Ok(0),
        })
        .map(Array::Unsigned),
        1 | 3 | 5 | 11 => fill(count, || match scalar(cursor, key, ty)? {
            Value::Signed(x) => Ok(x),
            _ => Ok(0),
        })
        .map(Array::Signed),
        6 | 12 => fill(count, || match scalar(cursor, key, ty)? {
            Value::Float(x) => Ok(x),
            _ => Ok(0.0),
        })
        .map(Array::Float),
        7 => fill(count, || Ok(scalar(cursor, key, ty)? == Value::Bool(true))).map(Array::Bool),
        TYPE_STRING => fill(count, || Ok(cursor.string(key)?.to_owned())).map(Array::Text),
        TYPE_ARRAY => fill(count, || array(cursor, key, depth + 1)).map(Array::Nested),
        _ => cursor.fail(key, format!("is an array of the unknown type {ty}; the file is damaged")),
    }
}

/// Grows with the elements that are really there, never by `count` alone.
fn fill<T>(count: u64, mut next: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    for _ in 0..count {
        elements.push(next()?);
    }
    Ok(elements)
}

impl fmt::Display for Value {
    /// Short enough for a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(x) => write!(f, "{x}"),
            Self::Signed(x) => write!(f, "{x}"),
            Self::Float(x) => write!(f, "{x}"),
            Self::Bool(x) => write!(f, "{x}"),
            Self::Text(text) => {
                let short: String = text.chars().take(60).collect();
                write!(f, "{short:?}{}", if short.len() < text.len() { "..." } else { "" })
            }
            Self::Array(array) => {
                let (len, what) = match array {
                    Array::Unsigned(x) => (x.len(), "unsigned integers"),
                    Array::Signed(x) => (x.len(), "integers"),
                    Array::Float(x) => (x.len(), "floats"),
                    Array::Bool(x) => (x.len(), "truth values"),
                    Array::Text(x) => (x.len(), "strings"),
                    Array::Nested(x) => (x.len(), "arrays"),
                };
                write!(f, "an array of {len} {what}")
            }
        }
    }
}
