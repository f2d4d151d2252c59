//! Which variants of the shaders the page's GPU uses: measured, or remembered by the page.

use crate::engine::{StartOptions, parse};
use crate::error::Failure;
use crate::gpu::{Gpu, Page};
use lowbit_core::activation::Activations;
use lowbit_core::backend::{CpuBackend, at_once};
use lowbit_core::container::parse_header;
use lowbit_core::simd::Isa;
use lowbit_engine::{Probe, ProbeShape};
use lowbit_gpu::{Choice, Extensions, Features, GpuBackend, Key, Origin, Record, Tuning};
use std::time::Duration;
use wasm_bindgen::prelude::*;

/// The search for the variants of a model on a GPU.
#[wasm_bindgen]
pub struct Tuner {
    key: Key,
    shape: ProbeShape,
    tuning: Tuning,
    activations: Activations,
    threads: usize,
    device: Option<(GpuBackend<Page>, Probe<GpuBackend<Page>>)>,
    record: Option<(Record, Origin)>,
}

#[wasm_bindgen]
impl Tuner {
    /// The fixed choice, until something is recalled or measured. `adapter` is what the GPU calls itself, `dot4`, `subgroups`
    /// and `f16` what it can do; the others are as for [`GpuArtifact`](crate::gpu::GpuArtifact), but that `options` has the
    /// threads that the CPU would have.
    #[wasm_bindgen(constructor)]
    pub fn new(
        name: &str,
        header: &[u8],
        adapter: String,
        options: &str,
        dot4: bool,
        subgroups: bool,
        f16: bool,
    ) -> Result<Tuner, JsValue> {
        let options: StartOptions = parse(options)?;
        let header = parse_header(name, header, None).and_then(|parsed| parsed.complete(name));
        let header = header.map_err(Failure::from)?;
        let activations = options.activations.unwrap_or(header.manifest.activations);
        // What is as exact as bytes serves no model that asks for more.
        let dot4 = dot4 && activations == Activations::A8;
        let features = Features { dot4, extensions: Extensions { subgroups, f16 } };
        let shape = ProbeShape::new(&header).map_err(Failure::from)?;
        let key = Key::new(adapter, format!("{shape}, {}", activations.name()), features);
        let tuning = Tuning::new(features, shape.last_position(), Tuning::BUDGET);
        // A module without shared memory has no more.
        let threads = if cfg!(target_feature = "atomics") { options.threads } else { 1 };
        Ok(Self { key, shape, tuning, activations, threads, device: None, record: None })
    }

    /// The name under which the record is kept.
    pub fn key(&self) -> String {
        self.key.to_string()
    }

    /// Takes what is kept under that name. Returns whether it is a record of this device and model.
    pub fn recall(&mut self, text: &str) -> bool {
        self.record = Record::read(text, &self.key).map(|record| (record, Origin::Remembered));
        self.record.is_some()
    }

    /// Begins to measure on a device that serves nothing else.
    pub fn begin(&mut self, gpu: Gpu) -> Result<(), JsValue> {
        let device = GpuBackend::new(Page::new(gpu));
        let probe = Probe::new(&self.shape, &device).map_err(Failure::from)?;
        self.device = Some((device, probe));
        Ok(())
    }

    /// Goes on. Returns the record that is to be kept, once all is measured; nothing while the device works.
    pub fn poll(&mut self) -> Result<Option<String>, JsValue> {
        let Some((device, probe)) = &mut self.device else { return Ok(None) };
        let result = self.tuning.poll(device, |device, trial| probe.poll(device, trial.rows, trial.pos));
        if result.map_err(Failure::from)?.is_pending() {
            return Ok(None);
        }
        self.device = None;
        let share = self.shape.share();
        let record =
            Record::new(self.key.clone(), self.tuning.kernels(), self.tuning.token(share), self.on_cpu()?);
        let text = record.to_json();
        self.record = Some((record, Origin::Measured));
        Ok(Some(text))
    }

    /// The choice, for [`GpuArtifact`](crate::gpu::GpuArtifact).
    pub fn choice(&self) -> String {
        self.chosen().to_json()
    }

    /// Why the CPU is to be preferred, if it is.
    pub fn slower(&self) -> Option<String> {
        let choice = self.chosen();
        choice.is_slower_than_cpu().then(|| choice.to_string())
    }
}

impl Tuner {
    fn chosen(&self) -> Choice {
        match &self.record {
            Some((record, origin)) => Choice::of(record, *origin, self.threads),
            None => Choice::fixed(self.tuning.kernels()),
        }
    }

    /// What a token takes on one thread of the CPU.
    fn on_cpu(&self) -> Result<Option<Duration>, Failure> {
        let mut cpu = CpuBackend::new(Isa::best(), 1, self.activations)?;
        let mut probe = Probe::new(&self.shape, &cpu)?;
        let time = at_once(probe.poll(&mut cpu, 1, 0))?;
        Ok(Some(time.step.mul_f64(self.shape.share())))
    }
}
