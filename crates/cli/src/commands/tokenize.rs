//! `lowbit tokenize`: text to tokens and back.

use crate::error::Result;
use crate::{input, model, output};
use lowbit_engine::{Codec, Message};

#[derive(clap::Args)]
pub struct Tokenize {
    /// An artifact, a GGUF file, a Hugging Face folder, or the name `smollm2`
    #[arg(short, long, default_value = "smollm2")]
    model: String,
    /// The text; `-` reads standard input
    #[arg(required_unless_present = "decode")]
    text: Option<String>,
    /// Special tokens in the text count as such
    #[arg(long)]
    special: bool,
    /// The text is a question in the model's chat template
    #[arg(long)]
    chat: bool,
    /// Turn these tokens, separated by commas, into text
    #[arg(long, value_delimiter = ',', conflicts_with = "text")]
    decode: Option<Vec<u32>>,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

impl Tokenize {
    pub fn run(&self) -> Result<()> {
        let codec = Codec::load(&model::open(&self.model)?.artifact)?;
        let tokenizer = codec.tokenizer();
        let ids = match (&self.decode, self.text.as_deref().unwrap_or_default()) {
            (Some(ids), _) => ids.clone(),
            (None, text) if self.chat => {
                codec.encode_chat(&[Message::new("user", input::text_or_stdin(text)?)])?
            }
            (None, text) => tokenizer.encode(&input::text_or_stdin(text)?, self.special),
        };
        let size = tokenizer.vocab_size();
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= size) {
            return Err(lowbit_engine::Error::Token { id, vocab_size: size }.into());
        }
        let bytes: Vec<&[u8]> = ids.iter().map(|&id| tokenizer.token_bytes(id)).collect();
        let text = String::from_utf8_lossy(&bytes.concat()).into_owned();
        let pieces: Vec<_> = bytes.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
        if self.json {
            return output::json(&serde_json::json!({ "tokens": ids, "pieces": pieces, "text": text }));
        }
        if self.decode.is_some() {
            return output::line(&text);
        }
        ids.iter().zip(pieces).try_for_each(|(id, piece)| output::line(&format!("{id}\t{piece:?}")))
    }
}
