//! Reading from a prefix of a file.

use crate::Error;

/// No real header is longer; a file that asks for more is damaged. It bounds what is read when the length is unknown.
const MAX_HEADER: u64 = 256 << 20;

/// Why parsing stopped.
pub(super) enum Stop {
    /// The prefix is too short.
    NeedMore(u64),
    /// The file is bad.
    Failed(Error),
}

type Result<T> = std::result::Result<T, Stop>;

pub(super) struct Cursor<'a> {
    file: &'a str,
    prefix: &'a [u8],
    position: usize,
    /// The header ends before this byte.
    limit: u64,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a str, prefix: &'a [u8], file_len: Option<u64>) -> Self {
        Self { file, prefix, position: 0, limit: file_len.unwrap_or(u64::MAX).min(MAX_HEADER) }
    }

    pub fn file(&self) -> &'a str {
        self.file
    }

    pub fn position(&self) -> u64 {
        self.position as u64
    }

    pub fn fail<T>(&self, field: &str, problem: impl Into<String>) -> Result<T> {
        Err(Stop::Failed(Error::malformed(self.file, field, problem)))
    }

    pub fn unsupported<T>(&self, field: &str, what: impl Into<String>, hint: &str) -> Result<T> {
        Err(Stop::Failed(Error::unsupported(self.file, field, what, hint)))
    }

    /// Fails when `count` things of at least `size` bytes each cannot fit into the rest of the file.
    pub fn check_count(&self, field: &str, count: u64, size: u64) -> Result<()> {
        let room = self.limit.saturating_sub(self.position());
        if count > room / size {
            return self.fail(
                field,
                format!("is {count}, but only {room} bytes can follow; the file is truncated or damaged"),
            );
        }
        Ok(())
    }

    pub fn bytes(&mut self, len: u64, field: &str) -> Result<&'a [u8]> {
        let end = self.position().checked_add(len).filter(|&end| end <= self.limit);
        let Some(end) = end else {
            return self.fail(
                field,
                format!(
                    "needs {len} bytes at byte {}, but the header can reach to byte {} only; \
                     the file is truncated or damaged",
                    self.position, self.limit
                ),
            );
        };
        match usize::try_from(end).ok().and_then(|end| self.prefix.get(self.position..end)) {
            Some(bytes) => {
                self.position += bytes.len();
                Ok(bytes)
            }
            None => Err(Stop::NeedMore(end)),
        }
    }

    pub fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N as u64, field)?);
        Ok(array)
    }

    pub fn u32(&mut self, field: &str) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, field: &str) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub fn string(&mut self, field: &str) -> Result<&'a str> {
        let len = self.u64(field)?;
        let bytes = self.bytes(len, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(error) => self.fail(field, format!("is not UTF-8: {error}; the file is damaged")),
        }
    }
}
