//! What the GPU is to do, as plain data: it can be compared, printed and tested without one.

use crate::shader::Shader;

/// Where every WebGPU device lets the parameters of a dispatch begin.
const PARAMS_ALIGN: usize = 256;

/// Names a buffer of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// One run of a shader.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// What runs.
    pub shader: Shader,
    /// The shader's `params`, in words.
    pub params: Vec<u32>,
    /// Its storage buffers, in the order of its bindings.
    pub buffers: Vec<BufferId>,
    /// Workgroups along x and y.
    pub workgroups: [u32; 2],
    /// What it costs.
    pub cost: Cost,
}

/// What a dispatch moves and computes, if every byte is moved once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of packed weights read.
    pub weights: u64,
    /// Bytes of everything else read and written.
    pub others: u64,
    /// Multiplications with weights.
    pub macs: u64,
}

impl Dispatch {
    /// Whether another one is the same for the GPU, whatever it costs.
    fn is_same(&self, other: &Self) -> bool {
        let parts = |d: &'_ Self| (d.shader, d.workgroups);
        parts(self) == parts(other) && self.params == other.params && self.buffers == other.buffers
    }
}

/// The dispatches of one step, in order.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In the order of execution; each sees what those before it wrote.
    pub dispatches: Vec<Dispatch>,
}

impl Plan {
    /// Whether another plan is the same for the GPU. What attention costs grows with the position; what it is told does
    /// not change.
    pub fn is_same(&self, other: &Self) -> bool {
        let pairs = self.dispatches.iter().zip(&other.dispatches);
        self.dispatches.len() == other.dispatches.len() && pairs.into_iter().all(|(a, b)| a.is_same(b))
    }

    /// The parameters of all dispatches for one uniform buffer, and where those of each begin, in bytes.
    pub fn params(&self) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
        for Dispatch { params, .. } in &self.dispatches {
            bytes.resize(bytes.len().next_multiple_of(PARAMS_ALIGN), 0);
            offsets.push(bytes.len() as u32);
            bytes.extend(params.iter().flat_map(|word| word.to_le_bytes()));
        }
        (bytes, offsets)
    }

    /// The cost of all dispatches.
    pub fn cost(&self) -> Cost {
        self.dispatches.iter().fold(Cost::default(), |sum, dispatch| Cost {
            weights: sum.weights + dispatch.cost.weights,
            others: sum.others + dispatch.cost.others,
            macs: sum.macs + dispatch.cost.macs,
        })
    }
}

impl std::fmt::Display for Plan {
    /// A line a dispatch: the shader, its workgroups, and the bytes of weights and of everything else.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Dispatch { shader, workgroups: [x, y], cost, .. } in &self.dispatches {
            let Cost { weights, others, macs } = cost;
            let name = shader.to_string();
            writeln!(f, "{name:<24} {x:>6} x {y:<4} {weights:>12} {others:>10} bytes {macs:>12} MACs")?;
        }
        let Cost { weights, others, macs } = self.cost();
        let dispatches = self.dispatches.len();
        write!(f, "{dispatches} dispatches, {weights} bytes of weights, {others} others, {macs} MACs")
    }
}
