//! From a model argument to a model.

use crate::args::{Device, DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::fetch::{PACKAGED, PackagedModel};
use crate::{cache, progress, tuning, whole_file};
use lowbit_core::activation::Activations;
use lowbit_core::backend::{Backend, CpuBackend, at_once};
use lowbit_core::container::{Artifact, Header, VERSION};
use lowbit_core::format::PlaneSizes;
use lowbit_core::simd::Isa;
use lowbit_engine::calibrate::Packer;
use lowbit_engine::oracle::Oracle;
use lowbit_engine::{LoadOptions, Model, SelfTest, convert};
use lowbit_gpu::{Choice, Executor, GpuBackend, Kernels, Native};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A model in memory, not yet on a device.
pub struct Source {
    pub artifact: Artifact,
    /// Seconds it took to read it.
    read_s: f64,
}

/// A model on a device, and how it runs there.
pub struct Loaded<B: Backend> {
    pub model: Model<B>,
    /// Seconds from the file to the device.
    pub load_s: f64,
    pub runs_on: RunsOn,
}

/// How a model runs.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub enum RunsOn {
    Cpu { isa: &'static str, threads: usize, act: Activations },
    Gpu { gpu: String, kernels: String },
    Reference { exact: bool },
}

/// What a command does with a model, whatever device it runs on.
pub trait Job {
    type Output;
    fn run_on<B: Backend>(self, loaded: Loaded<B>) -> Result<Self::Output>;
}

/// Reads the model that the user named.
pub fn open(model: &str) -> Result<Source> {
    let start = Instant::now();
    let artifact = match named(model) {
        Some(packaged) => read_cached(packaged)?,
        None => match kind(Path::new(model))? {
            Kind::Source => convert::in_memory(Path::new(model), &convert::Options::default(), &mut |_| ())?,
            Kind::Artifact => Artifact::read(Path::new(model), true)?,
        },
    };
    Ok(Source { artifact, read_s: start.elapsed().as_secs_f64() })
}

/// The header of the model that the user named. Of an artifact nothing else is read.
pub fn header(model: &str) -> Result<Header> {
    let path = match named(model) {
        Some(packaged) => cached(packaged)?,
        None => match kind(Path::new(model))? {
            Kind::Source => return Ok(open(model)?.artifact.header().clone()),
            Kind::Artifact => PathBuf::from(model),
        },
    };
    Ok(Header::read(&path)?)
}

impl Source {
    /// Moves the model to `device` and does a job there.
    pub fn run<J: Job>(&self, device: DeviceArgs, arguments: &ModelArgs, job: J) -> Result<J::Output> {
        match device.device {
            Device::Cpu => job.run_on(self.load(arguments)?),
            Device::Gpu => job.run_on(self.load_on_gpu(arguments, device.retune)?),
        }
    }

    /// Moves the model to the CPU.
    pub fn load(&self, arguments: &ModelArgs) -> Result<Loaded<CpuBackend>> {
        self.load_on(arguments, |cpu| cpu)
    }

    /// Moves the model to what `device` makes of the CPU.
    pub fn load_on<B: Backend>(
        &self,
        arguments: &ModelArgs,
        device: impl FnOnce(CpuBackend) -> B,
    ) -> Result<Loaded<B>> {
        let start = Instant::now();
        let act = arguments.act.unwrap_or(self.artifact.header().manifest.activations);
        let isa = arguments.isa.unwrap_or_else(Isa::best);
        let backend =
            CpuBackend::new(isa, arguments.threads.unwrap_or_else(lowbit_core::parallel::cores), act)?;
        let runs_on = RunsOn::Cpu { isa: isa.name(), threads: backend.threads(), act };
        self.place(arguments, start, device(backend), runs_on)
    }

    /// Moves the model to the GPU of this machine, once that has computed rightly; `retune` as in [`tuning::choose`].
    pub fn load_on_gpu(&self, arguments: &ModelArgs, retune: bool) -> Result<Loaded<GpuBackend<Native>>> {
        let start = Instant::now();
        let header = self.artifact.header();
        let (native, fixed) = (Native::new()?, Choice::fixed(Kernels::default()));
        let gpu = native.name().to_owned();
        let choice = tuning::choose(&native, header, retune);
        let (backend, choice) = match tested(native, header, choice.kernels) {
            Err(_) if choice.kernels != fixed.kernels => {
                (tested(Native::new()?, header, fixed.kernels)?, fixed)
            }
            result => (result?, choice),
        };
        let runs_on = RunsOn::Gpu { gpu, kernels: choice.to_string() };
        self.place(arguments, start, backend, runs_on)
    }

    /// Moves the model to the f32 reference backend.
    pub fn load_exact(&self, arguments: &ModelArgs) -> Result<Loaded<Oracle>> {
        self.place(arguments, Instant::now(), Oracle::default(), RunsOn::Reference { exact: true })
    }

    /// Moves the model to a backend that was made from `start` on.
    fn place<B: Backend>(
        &self,
        arguments: &ModelArgs,
        start: Instant,
        backend: B,
        runs_on: RunsOn,
    ) -> Result<Loaded<B>> {
        let options = LoadOptions { context: arguments.context };
        let model = Model::load(&self.artifact, backend, options)?;
        Ok(Loaded { model, load_s: self.read_s + start.elapsed().as_secs_f64(), runs_on })
    }

    /// Bytes of all packed matrices.
    pub fn matrix_bytes(&self) -> usize {
        let matrices = &self.artifact.header().manifest.matrices;
        let sizes = matrices.values().filter_map(|m| m.format.plane_sizes(m.n, m.k));
        sizes.map(PlaneSizes::total).sum()
    }
}

/// A GPU as a backend, after it has computed every op of the model that `header` describes.
///
/// # Errors
/// When it computes one wrongly. The device does not change by itself: who asked for the GPU hears of it.
fn tested<E: Executor>(executor: E, header: &Header, kernels: Kernels) -> Result<GpuBackend<E>> {
    use lowbit_core::Error as Core;
    let mut backend = GpuBackend::with(executor, kernels);
    let mut test = SelfTest::new(header, Activations::A16)?;
    at_once(test.poll(&mut backend)).map_err(|error| match error {
        Core::Device { device, problem } => {
            Core::Device { device, problem: format!("{problem}; run on the CPU, without --device gpu") }
        }
        other => other,
    })?;
    Ok(backend)
}

/// The packaged model of that name.
pub fn named(model: &str) -> Option<&'static PackagedModel> {
    PACKAGED.iter().find(|packaged| packaged.name == model)
}

/// Where the packaged model's artifact is kept.
pub fn cached_path(packaged: &PackagedModel) -> Result<PathBuf> {
    let [major, minor] = VERSION;
    Ok(cache::dir()?.join(format!("{}.{major}.{minor}.lowbit", packaged.name)))
}

/// The packaged model's artifact in the cache, packed if it is not there yet.
fn cached(packaged: &PackagedModel) -> Result<PathBuf> {
    let path = cached_path(packaged)?;
    if !path.exists() {
        pack(&packaged.gguf()?, &path, &convert::Options::default())?;
    }
    Ok(path)
}

/// Reads the packaged model's artifact. One that is damaged is packed again.
fn read_cached(packaged: &PackagedModel) -> Result<Artifact> {
    use lowbit_core::Error as Core;
    let path = cached(packaged)?;
    match Artifact::read(&path, true) {
        Err(Core::Corrupt { .. } | Core::Malformed { .. } | Core::MissingTensor { .. }) => {
            std::fs::remove_file(&path).map_err(|e| Error::io(&path, e))?;
            Ok(Artifact::read(&cached(packaged)?, true)?)
        }
        read => Ok(read?),
    }
}

/// Makes a GGUF file of an artifact, showing how far it is.
pub fn export(model: &str, out: &Path) -> Result<convert::Exported> {
    let artifact = match named(model) {
        Some(packaged) => cached(packaged)?,
        None => PathBuf::from(model),
    };
    refuse_same(&artifact, out)?;
    if let Kind::Source = kind(&artifact)? {
        return Err(no_model(&artifact, "is no artifact; pack it first"));
    }
    let bar = progress::bytes("exporting", 0);
    let mut show = |progress: convert::Progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    };
    let exported = whole_file::write(out, |file| Ok(convert::to_gguf(&artifact, file, out, &mut show)?));
    bar.finish_and_clear();
    exported
}

/// Packs a GGUF file or a Hugging Face folder, showing how far it is.
pub fn pack(source: &Path, out: &Path, options: &convert::Options) -> Result<convert::Summary> {
    pack_rounded(source, out, options, &mut Packer::default())
}

/// As [`pack`], with matrices rounded as `packer` says.
pub fn pack_rounded(
    source: &Path,
    out: &Path,
    options: &convert::Options,
    packer: &mut Packer,
) -> Result<convert::Summary> {
    refuse_same(source, out)?;
    if let Kind::Artifact = kind(source)? {
        let problem =
            "is an artifact already, or a part of a Hugging Face folder; give a GGUF file or the folder";
        return Err(no_model(source, problem));
    }
    let bar = progress::bytes("packing", 0);
    let mut show = |progress: convert::Progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    };
    let summary = whole_file::write(out, |file| {
        Ok(convert::to_file_rounded(source, file, out, options, packer, &mut show)?)
    });
    bar.finish_and_clear();
    summary
}

/// Refuses an output in the place of what is read, or of another output.
pub fn refuse_same(source: &Path, out: &Path) -> Result<()> {
    let (Some(from), Some(to)) = (place(source), place(out)) else { return Ok(()) };
    if from == to || convert::reads(&from, &to) {
        let problem = format!(
            "{}: the output would replace its source, {}; choose another name",
            out.display(),
            source.display()
        );
        return Err(Error::Usage(problem));
    }
    Ok(())
}

/// Where a file is, or would be.
fn place(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    })
}

/// Says what a model can be where there is nothing at `path`.
pub fn check_exists(path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Err(Error::Usage("the model is an empty text, expected a file or a name".to_owned()));
    }
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let names: Vec<&str> = PACKAGED.iter().map(|packaged| packaged.name).collect();
            let known = format!(
                "no such file; give an artifact, a GGUF file, a Hugging Face folder or {}",
                names.join(", ")
            );
            Err(Error::io(path, std::io::Error::new(e.kind(), known)))
        }
        _ => Ok(()),
    }
}

/// What a path holds, as far as the first bytes tell.
enum Kind {
    /// A GGUF file or a Hugging Face folder, which must be packed.
    Source,
    /// An artifact, or another safetensors file.
    Artifact,
}

fn kind(path: &Path) -> Result<Kind> {
    if path.is_dir() {
        return Ok(Kind::Source);
    }
    check_exists(path)?;
    let mut start = Vec::new();
    let (file, _) = lowbit_core::import::open(path)?;
    file.take(9).read_to_end(&mut start).map_err(|e| Error::io(path, e))?;
    match start.as_slice() {
        [b'G', b'G', b'U', b'F', ..] => Ok(Kind::Source),
        // The length of a header, and the JSON that it is.
        [.., b'{'] if start.len() == 9 => Ok(Kind::Artifact),
        _ => {
            let found = if start.is_empty() {
                "is empty".to_owned()
            } else {
                format!("begins with \"{}\"", start.escape_ascii())
            };
            Err(no_model(
                path,
                &format!("{found}, expected an artifact, a GGUF file or a Hugging Face folder"),
            ))
        }
    }
}

fn no_model(path: &Path, problem: &str) -> Error {
    lowbit_core::Error::malformed(&path.display().to_string(), "format", problem).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lowbit_gpu::Dry;
    use lowbit_testing::TinyModel;

    #[test]
    fn a_gpu_that_computes_wrongly_gets_no_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, TinyModel::default().gguf()).unwrap();
        let source = open(path.to_str().unwrap()).unwrap();
        let error = tested(Dry::default(), source.artifact.header(), Kernels::default()).err().unwrap();
        assert_eq!(error.code(), "device");
        let message = error.to_string();
        for part in ["Logits(Q8) of 33 rows computes wrongly", "run on the CPU, without --device gpu"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
