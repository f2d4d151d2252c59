//! The page's GPU: plans go to `Gpu` of `web/src/worker/gpu.ts`, which speaks WebGPU, and models go to it as they arrive.

use crate::artifact::Artifact;
use crate::engine::{Engine, StartOptions, parse};
use crate::error::Failure;
use js_sys::Uint8Array;
use lowbit_core::activation::Activations;
use lowbit_core::container::{Header, parse_header};
use lowbit_core::{Error, Result};
use lowbit_engine::{SelfTest, Upload};
use lowbit_gpu::{BufferId, Choice, Dispatch, Executor, GpuBackend, Kept, Kernels, Plan, Products, Shader};
use std::collections::HashMap;
use std::task::Poll;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// A WebGPU device. Every method does what it is told in order; what fails later is told by `take`.
    pub type Gpu;
    /// Makes a buffer of zeros and returns its number.
    #[wasm_bindgen(method)]
    fn buffer(this: &Gpu, what: &str, bytes: f64) -> u32;
    #[wasm_bindgen(method)]
    fn free(this: &Gpu, buffer: u32);
    #[wasm_bindgen(method)]
    fn write(this: &Gpu, buffer: u32, offset: f64, bytes: &[u8]);
    /// Compiles a shader and returns its number.
    #[wasm_bindgen(method)]
    fn shader(this: &Gpu, name: &str, source: &str, reads_step: bool) -> u32;
    /// Begins a plan with the parameters of all its dispatches and returns its number.
    #[wasm_bindgen(method)]
    fn plan(this: &Gpu, params: &[u8]) -> u32;
    /// Adds a dispatch to a plan; `offset` and `size` say where its parameters are.
    #[wasm_bindgen(method)]
    #[allow(clippy::too_many_arguments, reason = "a dispatch, in numbers")]
    fn dispatch(this: &Gpu, plan: u32, shader: u32, offset: u32, size: u32, buffers: &[u32], x: u32, y: u32);
    #[wasm_bindgen(method, js_name = freePlan)]
    fn free_plan(this: &Gpu, plan: u32);
    #[wasm_bindgen(method)]
    fn run(this: &Gpu, plan: u32, pos: u32);
    /// Asks for bytes of a buffer, or, for 0 bytes, for the end.
    #[wasm_bindgen(method)]
    fn ask(this: &Gpu, buffer: u32, bytes: f64);
    /// What was asked for, or nothing yet; throws what went wrong.
    #[wasm_bindgen(method, catch)]
    fn take(this: &Gpu) -> std::result::Result<Option<Uint8Array>, JsValue>;
}

/// An executor in a page.
pub struct Page {
    gpu: Gpu,
    shaders: HashMap<Shader, u32>,
    plans: Kept<u32>,
}

impl Page {
    /// Nothing is on the device yet.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu, shaders: HashMap::new(), plans: Kept::default() }
    }

    fn shader(&mut self, shader: Shader) -> u32 {
        let compile = || self.gpu.shader(&shader.to_string(), &shader.source(), shader.reads_step());
        *self.shaders.entry(shader).or_insert_with(compile)
    }

    fn prepare(&mut self, plan: &Plan) -> u32 {
        if let Some(&number) = self.plans.get(plan) {
            return number;
        }
        let (params, offsets) = plan.params();
        let number = self.gpu.plan(&params);
        for (Dispatch { shader, params, buffers, workgroups: [x, y], .. }, offset) in
            plan.dispatches.iter().zip(offsets)
        {
            let buffers: Vec<u32> = buffers.iter().map(|buffer| buffer.0).collect();
            let shader = self.shader(*shader);
            self.gpu.dispatch(number, shader, offset, params.len() as u32 * 4, &buffers, *x, *y);
        }
        if let Some(old) = self.plans.put(plan, number) {
            self.gpu.free_plan(old);
        }
        number
    }
}

impl Executor for Page {
    fn buffer(&mut self, what: &str, bytes: u64) -> Result<BufferId> {
        Ok(BufferId(self.gpu.buffer(what, bytes as f64)))
    }

    fn free(&mut self, buffer: BufferId) {
        for plan in self.plans.forget(buffer) {
            self.gpu.free_plan(plan);
        }
        self.gpu.free(buffer.0);
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) {
        self.gpu.write(buffer.0, offset as f64, bytes);
    }

    fn run(&mut self, plan: &Plan, pos: u32) -> Result<()> {
        let number = self.prepare(plan);
        self.gpu.run(number, pos);
        Ok(())
    }

    fn ask(&mut self, buffer: BufferId, bytes: u64) -> Result<()> {
        self.gpu.ask(buffer.0, bytes as f64);
        Ok(())
    }

    fn take(&mut self) -> Poll<Result<Vec<u8>>> {
        match self.gpu.take() {
            Ok(Some(bytes)) => Poll::Ready(Ok(bytes.to_vec())),
            Ok(None) => Poll::Pending,
            Err(thrown) => Poll::Ready(Err(device_error(&thrown))),
        }
    }
}

/// What the device says went wrong: `{code, message}`.
fn device_error(thrown: &JsValue) -> Error {
    let text = |name: &str| js_sys::Reflect::get(thrown, &name.into()).ok().and_then(|text| text.as_string());
    let problem = text("message").unwrap_or_else(|| "it failed without a word".to_owned());
    if text("code").as_deref() == Some("out-of-memory") {
        return Error::no_memory_on_gpu("GPU".to_owned(), problem);
    }
    Error::gpu(problem)
}

/// A model that moves to the GPU while it arrives.
#[wasm_bindgen]
pub struct GpuArtifact {
    header_bytes: Vec<u8>,
    upload: Upload<GpuBackend<Page>>,
    test: SelfTest,
    /// The activations with which the CPU computes as the GPU does.
    reference: Activations,
    options: StartOptions,
    choice: Choice,
}

#[wasm_bindgen]
impl GpuArtifact {
    /// Checks the header, the bytes of the file before its data. `options` is that of [`Engine::start`]; `choice`,
    /// that of a [`Tuner`](crate::tuner::Tuner), or nothing: then the variants ask for nothing that a device may lack.
    #[wasm_bindgen(constructor)]
    pub fn new(
        name: &str,
        header: Vec<u8>,
        gpu: Gpu,
        options: &str,
        choice: Option<String>,
    ) -> std::result::Result<GpuArtifact, JsValue> {
        let parsed = parse_header(name, &header, None).and_then(|parsed| parsed.complete(name));
        Ok(Self::begin(header, parsed.map_err(Failure::from)?, gpu, options, choice)?)
    }

    /// Compares the device with the CPU, op by op. Returns whether that is done; if not, it goes on when the device has
    /// what it was asked for.
    pub fn check(&mut self) -> std::result::Result<bool, JsValue> {
        match self.test.poll(self.upload.backend()) {
            Poll::Ready(result) => Ok(result.map(|()| true).map_err(Failure::from)?),
            Poll::Pending => Ok(false),
        }
    }

    /// Bytes of the data region.
    #[wasm_bindgen(getter, js_name = dataLength)]
    pub fn data_length(&self) -> usize {
        self.upload.header().data_len
    }

    /// The bytes of the artifact before its data region.
    pub fn header(&self) -> Vec<u8> {
        self.header_bytes.clone()
    }

    /// Takes the next bytes of the data region, verified.
    pub fn push(&mut self, bytes: &[u8]) -> std::result::Result<(), JsValue> {
        Ok(self.upload.push(bytes).map_err(Failure::from)?)
    }

    /// Takes a whole artifact that was made here.
    pub fn of(
        artifact: Artifact,
        gpu: Gpu,
        options: &str,
        choice: Option<String>,
    ) -> std::result::Result<GpuArtifact, JsValue> {
        let header_bytes = artifact.header();
        let artifact = artifact.whole()?;
        let mut on_gpu = Self::begin(header_bytes, artifact.header().clone(), gpu, options, choice)?;
        on_gpu.upload.push(artifact.data().as_slice()).map_err(Failure::from)?;
        Ok(on_gpu)
    }

    /// Builds the model, now that all of its data is there.
    pub fn start(self) -> std::result::Result<Engine, JsValue> {
        Ok(Engine::on_gpu(self.upload, &self.options, self.reference, &self.choice)?)
    }
}

impl GpuArtifact {
    fn begin(
        header_bytes: Vec<u8>,
        header: Header,
        gpu: Gpu,
        options: &str,
        choice: Option<String>,
    ) -> std::result::Result<Self, Failure> {
        let options: StartOptions = parse(options)?;
        let choice = choice.and_then(|choice| Choice::read(&choice));
        let choice = choice.unwrap_or_else(|| Choice::fixed(Kernels::default()));
        let kernels = choice.kernels;
        // Where activations are not quantised, two bytes are as exact.
        let reference = if kernels.products == Products::Dot4 { Activations::A8 } else { Activations::A16 };
        let test = SelfTest::new(&header, reference)?;
        let backend = GpuBackend::with(Page::new(gpu), kernels);
        Ok(Self { header_bytes, upload: Upload::new(header, backend), test, reference, options, choice })
    }
}
