//! What the GPU's memory can do.

use std::time::Instant;

use crate::Result;
use lowbit_gpu::Native;
use wgpu::util::DeviceExt as _;
use wgpu::{Buffer, BufferUsages, CommandEncoder, Device, Queue};

/// Buffers that are read together: several times any cache.
const BUFFERS: usize = 4;
const BYTES: usize = 128 << 20;
const SMALL_BYTES: usize = 4 << 20;
/// All buffers are read or copied this often in one submission.
const ROUNDS: usize = 32;
/// The fastest of so many submissions counts, after one that warms up.
const REPEAT: usize = 5;
const WORKGROUPS: u32 = 2048;
const WORKGROUP: u32 = 256;

const SHADER: &str = "
@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> c: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> d: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> sums: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) workgroups: vec3<u32>) {
  var sum = vec4<u32>(0u);
  for (var i = id.x; i < arrayLength(&a); i += workgroups.x * 256u) {
    sum += a[i] ^ b[i] ^ c[i] ^ d[i];
  }
  sums[id.x] = sum;
}
";

/// Bytes per second, in GB.
pub struct Bandwidth {
    /// Read by a shader that adds up what it reads.
    pub read: f64,
    /// Read and written, both counted, by copies from buffer to buffer.
    pub copy: f64,
}

impl Bandwidth {
    /// What the memory has been seen to do.
    pub fn best(&self) -> f64 {
        self.read.max(self.copy)
    }
}

/// Measures a device that nothing else uses.
pub fn measure(gpu: &Native, is_small: bool) -> Result<Bandwidth> {
    let (device, queue) = gpu.device();
    let bytes = if is_small { SMALL_BYTES } else { BYTES };
    let buffers: Vec<Buffer> = (0..BUFFERS).map(|i| buffer(device, i as u64, bytes)).collect();
    let read = reader(device, &buffers);
    let copy = |encoder: &mut CommandEncoder| {
        encoder.copy_buffer_to_buffer(&buffers[0], 0, &buffers[1], 0, bytes as u64);
        encoder.copy_buffer_to_buffer(&buffers[2], 0, &buffers[3], 0, bytes as u64);
    };
    let moved = (BUFFERS * bytes * ROUNDS) as f64;
    Ok(Bandwidth {
        read: moved / fastest(device, queue, read)? / 1e9,
        copy: moved / fastest(device, queue, copy)? / 1e9,
    })
}

/// A buffer without order in it, which memory cannot compress.
fn buffer(device: &Device, seed: u64, bytes: usize) -> Buffer {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 32) as u32
    };
    let contents: Vec<u32> = (0..bytes / 4).map(|_| next()).collect();
    device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
        label: Some("bandwidth"),
        contents: bytemuck::cast_slice(&contents),
        usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
    })
}

/// What reads all buffers once.
fn reader(device: &Device, buffers: &[Buffer]) -> impl Fn(&mut CommandEncoder) {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("read"),
        source: wgpu::ShaderSource::Wgsl(SHADER.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("read"),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let sums = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("sums"),
        size: u64::from(WORKGROUPS * WORKGROUP) * 16,
        usage: BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let all = buffers.iter().chain([&sums]);
    let entries = (0..)
        .zip(all)
        .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() });
    let bindings = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("read"),
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries.collect::<Vec<_>>(),
    });
    move |encoder| {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &bindings, &[]);
        pass.dispatch_workgroups(WORKGROUPS, 1, 1);
    }
}

/// Seconds of the fastest submission.
fn fastest(device: &Device, queue: &Queue, round: impl Fn(&mut CommandEncoder)) -> Result<f64> {
    let mut fastest = f64::INFINITY;
    for i in 0..=REPEAT {
        let mut encoder =
            device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("bandwidth") });
        (0..ROUNDS).for_each(|_| round(&mut encoder));
        let start = Instant::now();
        queue.submit([encoder.finish()]);
        device.poll(wgpu::PollType::wait_indefinitely())?;
        if i > 0 {
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(fastest)
}
