//! Plans on the GPUs of the system: Vulkan, Metal or DirectX 12, by way of `wgpu`.

use std::collections::HashMap;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use crate::executor::{Executor, MAX_BINDING};
use crate::kept::Kept;
use crate::kernels::{Extensions, Features};
use crate::plan::{BufferId, Dispatch, Plan};
use crate::shader::Shader;
use lowbit_core::{Error, Result};
use wgpu::{BindGroup, Buffer, BufferUsages, ComputePipeline, Device, Queue};

/// Bytes that may wait in the system's memory for their way to the GPU.
const MAX_WAITING: usize = 256 << 20;

/// A GPU of the system.
pub struct Native {
    info: wgpu::AdapterInfo,
    extensions: Extensions,
    device: Device,
    queue: Queue,
    buffers: Vec<Option<Buffer>>,
    pipelines: HashMap<Shader, ComputePipeline>,
    /// What changes from step to step.
    step: Buffer,
    ready: Kept<Arc<[Run]>>,
    /// Bytes written since the last submission.
    waiting: usize,
    /// What was asked for last.
    asked: Option<Buffer>,
    failure: Arc<Mutex<Option<String>>>,
}

/// A dispatch with its bind group.
struct Run {
    pipeline: ComputePipeline,
    bindings: BindGroup,
    workgroups: [u32; 2],
}

impl Native {
    /// The system's most powerful GPU, or, where there is none, what computes like one, with all extensions that it offers.
    ///
    /// # Errors
    /// [`Error::Device`] when there is neither.
    pub fn new() -> Result<Self> {
        Self::with(Extensions { subgroups: true, f16: true })
    }

    /// The same with none but these extensions.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(extensions: Extensions) -> Result<Self> {
        pollster::block_on(Self::open(extensions))
    }

    async fn open(extensions: Extensions) -> Result<Self> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let hint = "install its Vulkan driver, or run on the CPU";
        let adapter = instance
            .request_adapter(&options)
            .await
            .map_err(|error| Error::gpu(format!("no GPU can be used ({error}); {hint}")))?;
        let offered = [wgpu::Features::SUBGROUP, wgpu::Features::SHADER_F16]
            .map(|feature| adapter.features().contains(feature));
        let [subgroups, f16] = offered;
        let extensions = extensions.only(Extensions { subgroups, f16 });
        let mut required_features = wgpu::Features::empty();
        required_features.set(wgpu::Features::SUBGROUP, extensions.subgroups);
        required_features.set(wgpu::Features::SHADER_F16, extensions.f16);
        // The default limits, which every WebGPU device has: what runs here runs everywhere.
        let descriptor =
            wgpu::DeviceDescriptor { label: Some("lowbit"), required_features, ..Default::default() };
        let (device, queue) = adapter
            .request_device(&descriptor)
            .await
            .map_err(|error| Error::gpu(format!("{}: {error}", adapter.get_info().name)))?;
        let failure = Arc::new(Mutex::new(None));
        let first = failure.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| note(&first, error.to_string())));
        let first = failure.clone();
        device.set_device_lost_callback(move |_, reason| {
            note(&first, format!("the device was lost: {reason}"))
        });
        let step = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("step"),
            size: 16,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let (buffers, pipelines) = (Vec::new(), HashMap::new());
        let (info, ready, waiting, asked) = (adapter.get_info(), Kept::default(), 0, None);
        Ok(Self { info, extensions, device, queue, buffers, pipelines, step, ready, waiting, asked, failure })
    }

    /// What the GPU is called.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// The GPU and its driver, as they call themselves.
    pub fn identity(&self) -> String {
        let wgpu::AdapterInfo { name, vendor, device, driver, driver_info, backend, .. } = &self.info;
        format!("{backend} {vendor:04x}:{device:04x} {name}, {driver} {driver_info}")
    }

    /// What it can do. Signed bytes are always multiplied, at worst by several instructions.
    pub fn features(&self) -> Features {
        Features { dot4: true, extensions: self.extensions }
    }

    /// Whether it is software that computes like a GPU, on the processor.
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// The device and its queue, for work beside plans.
    pub fn device(&self) -> (&Device, &Queue) {
        (&self.device, &self.queue)
    }

    /// Compiles a shader ahead of its first use.
    ///
    /// # Errors
    /// [`Error::Device`] when the device, or its driver, does not accept it.
    pub fn compile(&mut self, shader: Shader) -> Result<()> {
        self.pipeline(shader);
        self.check()
    }

    /// The first error that the device has reported.
    fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), |problem| Err(Error::gpu(format!("{}: {problem}", self.info.name))))
    }

    fn get(&self, buffer: BufferId) -> Result<&Buffer> {
        let found = self.buffers.get(buffer.0 as usize).and_then(Option::as_ref);
        found.ok_or_else(|| Error::gpu(format!("there is no buffer {}", buffer.0)))
    }

    fn pipeline(&mut self, shader: Shader) -> ComputePipeline {
        let make = || {
            let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(&shader.to_string()),
                // It is enabled by the device alone: `wgpu` does not know the directive.
                source: wgpu::ShaderSource::Wgsl(shader.source().replace("enable subgroups;\n", "").into()),
            });
            self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&shader.to_string()),
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: Default::default(),
                cache: None,
            })
        };
        self.pipelines.entry(shader).or_insert_with(make).clone()
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Arc<[Run]>> {
        if let Some(runs) = self.ready.get(plan) {
            return Ok(runs.clone());
        }
        let runs: Arc<[Run]> = self.bind(plan)?.into();
        self.ready.put(plan, runs.clone());
        Ok(runs)
    }

    fn bind(&mut self, plan: &Plan) -> Result<Vec<Run>> {
        let (params, offsets) = plan.params();
        let all = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: params.len() as u64,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&all, 0, &params);
        let mut runs = Vec::with_capacity(plan.dispatches.len());
        for (dispatch, offset) in plan.dispatches.iter().zip(offsets) {
            let Dispatch { shader, params, buffers, workgroups, .. } = dispatch;
            let pipeline = self.pipeline(*shader);
            let size = wgpu::BufferSize::new(params.len() as u64 * 4);
            let params = wgpu::BufferBinding { buffer: &all, offset: offset.into(), size };
            let mut resources = vec![wgpu::BindingResource::Buffer(params)];
            if shader.reads_step() {
                resources.push(self.step.as_entire_binding());
            }
            for buffer in buffers {
                resources.push(self.get(*buffer)?.as_entire_binding());
            }
            let entries =
                (0..).zip(resources).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource });
            let bindings = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(&shader.to_string()),
                layout: &pipeline.get_bind_group_layout(0),
                entries: &entries.collect::<Vec<_>>(),
            });
            runs.push(Run { pipeline, bindings, workgroups: *workgroups });
        }
        Ok(runs)
    }
}

impl Executor for Native {
    fn buffer(&mut self, what: &str, bytes: u64) -> Result<BufferId> {
        if bytes > MAX_BINDING {
            let problem = format!("{bytes} bytes of {what}, at most {MAX_BINDING} fit one buffer");
            return Err(Error::Shape { what: "GPU".into(), problem });
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size: bytes.next_multiple_of(16).max(16),
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        if pollster::block_on(scope.pop()).is_some() {
            let gpu = format!("GPU {}", self.info.name);
            return Err(Error::no_memory_on_gpu(gpu, format!("{bytes} bytes of {what}")));
        }
        let free = self.buffers.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.buffers.push(None);
            self.buffers.len() - 1
        });
        self.buffers[at] = Some(buffer);
        Ok(BufferId(at as u32))
    }

    fn free(&mut self, buffer: BufferId) {
        self.ready.forget(buffer);
        if let Some(slot) = self.buffers.get_mut(buffer.0 as usize) {
            *slot = None;
        }
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) {
        if let Ok(buffer) = self.get(buffer) {
            self.queue.write_buffer(buffer, offset, bytes);
        }
        self.waiting += bytes.len();
        if self.waiting > MAX_WAITING {
            self.waiting = 0;
            self.queue.submit([]);
            // What goes wrong here is told by the next run.
            let _ = self.device.poll(wgpu::PollType::wait_indefinitely());
        }
    }

    fn run(&mut self, plan: &Plan, pos: u32) -> Result<()> {
        let runs = self.prepare(plan)?;
        self.queue.write_buffer(&self.step, 0, bytemuck::cast_slice(&[pos, 0, 0, 0]));
        let mut encoder =
            self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("step") });
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for Run { pipeline, bindings, workgroups: [x, y] } in &*runs {
                pass.set_pipeline(pipeline);
                pass.set_bind_group(0, bindings, &[]);
                pass.dispatch_workgroups(*x, *y, 1);
            }
        }
        self.queue.submit([encoder.finish()]);
        self.waiting = 0;
        self.check()
    }

    fn ask(&mut self, buffer: BufferId, bytes: u64) -> Result<()> {
        self.asked = None;
        if bytes == 0 {
            return Ok(());
        }
        let copy = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("results"),
            size: bytes,
            usage: BufferUsages::COPY_DST | BufferUsages::MAP_READ,
            mapped_at_creation: false,
        });
        let mut encoder =
            self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("read") });
        encoder.copy_buffer_to_buffer(self.get(buffer)?, 0, &copy, 0, bytes);
        self.queue.submit([encoder.finish()]);
        self.asked = Some(copy);
        Ok(())
    }

    fn take(&mut self) -> Poll<Result<Vec<u8>>> {
        Poll::Ready(self.wait())
    }
}

impl Native {
    /// Waits for all that was asked for.
    fn wait(&mut self) -> Result<Vec<u8>> {
        let Some(copy) = self.asked.take() else {
            self.finish()?;
            return Ok(Vec::new());
        };
        let (sender, receiver) = mpsc::channel();
        copy.map_async(wgpu::MapMode::Read, .., move |result| drop(sender.send(result)));
        self.finish()?;
        match receiver.recv() {
            Ok(Ok(())) => {}
            _ => return Err(Error::gpu(format!("{}: results cannot be read", self.info.name))),
        }
        let view = copy.get_mapped_range(..).map_err(|error| Error::gpu(error.to_string()))?;
        Ok(view.to_vec())
    }

    fn finish(&self) -> Result<()> {
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .map_err(|error| Error::gpu(error.to_string()))?;
        self.check()
    }
}

/// Keeps the first problem.
fn note(failure: &Mutex<Option<String>>, problem: String) {
    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
}
