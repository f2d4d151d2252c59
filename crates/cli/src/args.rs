//! The arguments that several commands share.

use crate::error::Result;
use crate::input;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use lowbit_core::activation::Activations;
use lowbit_core::backend::Backend;
use lowbit_core::simd::Isa;
use lowbit_engine::{GenerateOptions, Message, Model, SamplingOptions};

/// Which model, and on what.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// An artifact, a GGUF file, a Hugging Face folder, or the name `smollm2`
    #[arg(short, long, default_value = "smollm2")]
    pub model: String,
    /// Instruction set [default: the fastest of this machine]
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Threads, 1 to 255 [default: the machine's cores]
    #[arg(long, value_parser = threads())]
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

/// Where a model runs.
#[derive(Args, Clone, Copy, Debug)]
pub struct DeviceArgs {
    /// The device; a GPU computes with floats
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["isa", "threads", "act"])]
    pub device: Device,
    /// Measure again which variants of its kernels the GPU is quickest with, though it is remembered
    #[arg(long)]
    pub retune: bool,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// All cores of this machine
    #[default]
    Cpu,
    /// The GPU of this machine, through Vulkan, Metal or DirectX 12
    Gpu,
}

/// Reads a number of threads.
pub fn threads() -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u8).range(1..).map(usize::from)
}

/// Reads the precision of activations.
pub fn activations() -> impl TypedValueParser<Value = Activations> {
    PossibleValuesParser::new(Activations::ALL.map(Activations::name)).map(|name| {
        // One of the possible values.
        Activations::ALL.into_iter().find(|act| act.name() == name).unwrap_or(Activations::A16)
    })
}

/// What the model is asked.
#[derive(Args, Clone, Debug)]
pub struct PromptArgs {
    /// The prompt; `-` reads standard input. An empty one is an empty message to the model, which answers it as it will;
    /// with --raw it is an error, unless the model begins every text with a token of its own
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
    /// The prompt's tokens.
    pub fn encode<B: Backend>(&self, model: &Model<B>) -> Result<Vec<u32>> {
        let text = input::text_or_stdin(&self.prompt)?;
        if self.raw {
            return Ok(model.codec().encode(&text));
        }
        let system = self.system.as_ref().map(|text| Message::new("system", text.clone()));
        let messages: Vec<Message> = system.into_iter().chain([Message::new("user", text)]).collect();
        Ok(model.codec().encode_chat(&messages)?)
    }
}

/// How an answer is made. What is left out is as the model's makers recommend, and what they leave out gives the likeliest
/// token always: the same question gets the same answer.
#[derive(Args, Clone, Debug)]
pub struct AnswerArgs {
    /// The most tokens of an answer [default: until the model ends it]
    #[arg(short = 'n', long, allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,
    /// Always the likeliest token, whatever the model's makers recommend
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Seed of the choice of tokens: another one gives another answer [default: 0]
    #[arg(long)]
    pub seed: Option<u64>,
    /// 0 is greedy [default: the model's, or 0]
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Choose among this many likeliest tokens; 0: all [default: the model's, or 40]
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that have this probability together [default: the model's, or 0.95]
    #[arg(long, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Choose among tokens that have this share of the likeliest one's probability [default: the model's, or 0.05]
    #[arg(long, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen; 1: off [default: the model's, or 1]
    #[arg(long, allow_negative_numbers = true)]
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
        let sampling = SamplingOptions {
            temperature: if self.greedy { Some(0.0) } else { self.temperature },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: None,
            seed: self.seed,
        };
        GenerateOptions {
            max_tokens: self.max_tokens,
            sampling,
            stop: self.stop.clone(),
            chunk: self.chunk,
            ..GenerateOptions::default()
        }
    }
}
