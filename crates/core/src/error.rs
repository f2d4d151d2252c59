//! What can go wrong in this crate: one variant per cause, each with the place, the value and what to do.

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of `lowbit-core`. [`Error::code`] is stable and reaches TypeScript unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The bytes are not what the file format demands.
    #[error("{file}: {field}: {problem}")]
    Malformed {
        /// The file's name as the caller gave it.
        file: String,
        /// The header field or the tensor's name.
        field: String,
        /// The offending value, what was expected, and what to do.
        problem: String,
    },
    /// A sound file that uses something that is not supported.
    #[error("{file}: {field}: {what} is not supported; {hint}")]
    Unsupported {
        /// The file's name as the caller gave it.
        file: String,
        /// The header field or the tensor's name.
        field: String,
        /// The unsupported value.
        what: String,
        /// What the user can do.
        hint: String,
    },
    /// A checksum does not agree.
    #[error(
        "{file}: chunk {chunk}: SHA-256 is {found}, expected {expected}; the data is corrupt, fetch it again"
    )]
    Corrupt {
        /// The file's name as the caller gave it.
        file: String,
        /// The chunk's index.
        chunk: usize,
        /// The hash of the bytes that came.
        found: String,
        /// The hash that the header promises.
        expected: String,
    },
    /// A tensor that the model needs is not there.
    #[error("{file}: tensor {tensor} is missing; the file is incomplete or of another architecture")]
    MissingTensor {
        /// The file's name.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A shape that an operation cannot take.
    #[error("{what}: {problem}")]
    Shape {
        /// The operation or the tensor.
        what: String,
        /// The sizes found and the sizes expected.
        problem: String,
    },
    /// The system, or the page, has no memory left for what is needed.
    #[error("{what}: no memory for {needed}; {hint}")]
    OutOfMemory {
        /// What needs it.
        what: String,
        /// How much, in the terms of what needs it.
        needed: String,
        /// What the user can do.
        hint: String,
    },
    /// A device, such as a GPU, that is not there or has failed.
    #[error("{device}: {problem}")]
    Device {
        /// What kind of device.
        device: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A requested ISA that this machine does not have.
    #[error("{0}")]
    Isa(String),
}

impl Error {
    /// [`Error::Malformed`] of a file's field or tensor. Texts that a damaged file has made long are cut.
    pub fn malformed(file: &str, field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Malformed { file: file.to_owned(), field: cut(field.into()), problem: cut(problem.into()) }
    }

    /// [`Error::Unsupported`]: a sound file with something that this library cannot use. Long texts are cut.
    pub fn unsupported(
        file: &str,
        field: impl Into<String>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self::Unsupported {
            file: file.to_owned(),
            field: cut(field.into()),
            what: cut(what.into()),
            hint: cut(hint.into()),
        }
    }

    /// [`Error::OutOfMemory`] of a model of `bytes` bytes.
    pub fn no_memory_for_model(file: &str, bytes: usize) -> Self {
        let hint = "close other programs or use a smaller model".into();
        Self::OutOfMemory { what: file.to_owned(), needed: format!("a model of {bytes} bytes"), hint }
    }

    /// [`Error::Device`] of a GPU.
    pub fn gpu(problem: impl Into<String>) -> Self {
        Self::Device { device: "GPU".to_owned(), problem: problem.into() }
    }

    /// [`Error::OutOfMemory`] of a GPU; `what` names it.
    pub fn no_memory_on_gpu(what: String, needed: String) -> Self {
        let hint = "use a smaller model or a shorter context, or run on the CPU".into();
        Self::OutOfMemory { what, needed, hint }
    }

    /// [`Error::MissingTensor`] of a file or another source of tensors.
    pub fn missing_tensor(file: &str, tensor: &str) -> Self {
        Self::MissingTensor { file: file.to_owned(), tensor: tensor.to_owned() }
    }

    /// A short stable identifier of the cause.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::Malformed { .. } => "malformed-file",
            Self::Unsupported { .. } => "unsupported",
            Self::Corrupt { .. } => "corrupt-data",
            Self::MissingTensor { .. } => "missing-tensor",
            Self::Shape { .. } => "bad-shape",
            Self::OutOfMemory { .. } => "out-of-memory",
            Self::Device { .. } => "device",
            Self::Isa(_) => "isa-unavailable",
        }
    }
}

/// At most some hundred bytes of `text`.
fn cut(mut text: String) -> String {
    const MOST: usize = 400;
    if text.len() > MOST {
        text.truncate(text.floor_char_boundary(MOST));
        text.push_str("...");
    }
    text
}
