//! The arguments that several commands share.

use crate::error::{Error, Result};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use lowbit_core::activation::Activations;
use lowbit_core::backend::Backend;
use lowbit_core::simd::Isa;
use lowbit_engine::GenerateOptions;
use lowbit_engine::sampler::Sampling;
use lowbit_engine::{Message, Model};

/// Which model, and on what.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// An artifact, a GGUF file, or the name `smollm2`
    #[arg(short, long, default_value = "smollm2")]
    pub model: String,
    /// Instruction set [default: the fastest of this machine]
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Threads [default: the machine's cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Precision of activations: one byte a value, or two, which are as exact as f32 [default: the model's]
    #[arg(long, value_parser = activations())]
    pub act: Option<Activations>,
    /// Positions of the KV cache [default: the model's, at most 2048]
    #[arg(long)]
    pub context: Option<usize>,
    /// One JSON document on standard output
    #[arg(long)]
    pub json: bool,
}

/// Reads the precision of activations.
pub fn activations() -> impl TypedValueParser<Value = Activations> {
    PossibleValuesParser::new(["a8", "a16"]).map(|name| match name.as_str() {
        "a8" => Activations::A8,
        _ => Activations::A16,
    })
}

/// What the model is asked.
#[derive(Args, Clone, Debug)]
pub struct PromptArgs {
    /// The prompt; `-` reads standard input
    #[arg(short, long)]
    pub prompt: String,
    /// System prompt [default: the chat template's]
    #[arg(long, conflicts_with = "raw")]
    pub system: Option<String>,
    /// The prompt is plain text to be continued: no chat template
    #[arg(long)]
    pub raw: bool,
}

impl PromptArgs {
    /// The prompt's text.
    pub fn text(&self) -> Result<String> {
        if self.prompt != "-" {
            return Ok(self.prompt.clone());
        }
        std::io::read_to_string(std::io::stdin())
            .map_err(|source| Error::Io { path: "standard input".to_owned(), source })
    }

    /// The prompt's tokens.
    pub fn encode<B: Backend>(&self, model: &Model<B>) -> Result<Vec<u32>> {
        let text = self.text()?;
        if self.raw {
            return Ok(model.codec().encode(&text));
        }
        let system = self.system.as_ref().map(|text| Message::new("system", text.clone()));
        let messages: Vec<Message> = system.into_iter().chain([Message::new("user", text)]).collect();
        Ok(model.codec().encode_chat(&messages)?)
    }
}

/// How an answer is made.
#[derive(Args, Clone, Debug)]
pub struct AnswerArgs {
    /// The most tokens of an answer [default: until the model ends it]
    #[arg(short = 'n', long)]
    pub max_tokens: Option<usize>,
    /// Always the likeliest token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Seed of the choice of tokens
    #[arg(long)]
    pub seed: Option<u64>,
    /// 0 is greedy
    #[arg(long)]
    pub temperature: Option<f32>,
    /// Choose among this many likeliest tokens; 0: all
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that have this probability together
    #[arg(long)]
    pub top_p: Option<f32>,
    /// Choose among tokens that have this share of the likeliest one's probability
    #[arg(long)]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen; 1: off
    #[arg(long)]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens seen
    #[arg(long, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logits of tokens seen, once for every time
    #[arg(long, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// The answer ends before this text; may be given several times
    #[arg(long)]
    pub stop: Vec<String>,
    /// Prompt tokens that are run together
    #[arg(long, default_value_t = 512)]
    pub chunk: usize,
}

impl AnswerArgs {
    /// As the engine takes them.
    pub fn options(&self) -> GenerateOptions {
        let mut sampling = if self.greedy { Sampling::greedy() } else { Sampling::default() };
        let set = |to: &mut f32, from: Option<f32>| *to = from.unwrap_or(*to);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.seed = self.seed.unwrap_or_else(random_seed);
        GenerateOptions {
            max_tokens: self.max_tokens,
            sampling,
            stop: self.stop.clone(),
            chunk: self.chunk,
            ..GenerateOptions::default()
        }
    }
}

/// A seed that differs from run to run.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
