//! Which variants of the shaders a GPU uses: measured once for a device and a model, and remembered.

use crate::error::{Error, Result};
use crate::{cache, whole_file};
use lowbit_core::container::Header;
use lowbit_engine::{Probe, ProbeShape};
use lowbit_gpu::{Choice, Features, GpuBackend, Kernels, Key, Native, Origin, Record, Tuning};
use std::io::Write;
use std::path::PathBuf;

/// The variants for a model on `native`. They are measured where nothing is remembered, unless software acts as the GPU,
/// which is slow whatever it runs; `again` measures in any case. What cannot be measured is as it is fixed.
pub fn choose(native: &Native, header: &Header, again: bool) -> Choice {
    let found = || {
        let shape = ProbeShape::new(header)?;
        let features = Features { dot4: false, ..native.features() };
        let key = Key::new(native.identity(), shape.to_string(), features);
        let path = path(&key)?;
        let known = || Record::read(&std::fs::read_to_string(&path).ok()?, &key);
        if let Some(record) = known().filter(|_| !again) {
            return Ok(Choice::of(&record, Origin::Remembered, 1));
        }
        if native.is_software() && !again {
            return Ok(Choice::fixed(Kernels::default()));
        }
        let record = measure(&shape, features, key)?;
        // Without a place to keep it, it is measured again.
        let _ = whole_file::write(&path, |mut file| {
            file.write_all(record.to_json().as_bytes()).map_err(|e| Error::io(&path, e))
        });
        Ok(Choice::of(&record, Origin::Measured, 1))
    };
    found().unwrap_or_else(|_: Error| Choice::fixed(Kernels::default()))
}

/// Where the record of that name is kept.
fn path(key: &Key) -> Result<PathBuf> {
    let folder = cache::dir()?.join("tuning");
    std::fs::create_dir_all(&folder).map_err(|e| Error::io(&folder, e))?;
    Ok(folder.join(format!("{key}.json")))
}

/// Measures on a device of its own: what fails there, or stays in its memory, is gone with it.
fn measure(shape: &ProbeShape, features: Features, key: Key) -> Result<Record> {
    let mut device = GpuBackend::new(Native::new()?);
    let mut probe = Probe::new(shape, &device)?;
    let mut tuning = Tuning::new(features, shape.last_position(), Tuning::BUDGET);
    let result = tuning.poll(&mut device, |device, trial| probe.poll(device, trial.rows, trial.pos));
    lowbit_core::backend::at_once(result)?;
    Ok(Record::new(key, tuning.kernels(), tuning.token(shape.share()), None))
}
