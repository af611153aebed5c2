//! From an open model and a recipe to a finished file or folder.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use mambo_checkpoint::{GgufMetadata, GgufTensor, GgufWriter};
use mambo_runtime::Model;
use mambo_tensor::{DType, Shape};

use crate::stream::{self, Sink};
use crate::{
    Container, ConvertError, Converter, Importance, Layout, Planned, Recipe, SquaredError, disk_space,
    folder, metadata,
};

/// Where the values of a file come from. Threads ask for rows at the same time.
pub trait Source: Sync {
    /// Writes rows `rows` of a tensor into `out`, in the tensor's stored type.
    fn rows(&self, tensor: &Planned, rows: Range<usize>, out: &mut [u8]) -> Result<(), ConvertError>;
}

/// Where a model is written.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The file or folder; its name decides which of them.
    pub path: &'a Path,
    /// Whether a file of that name may be replaced.
    pub replace: bool,
    /// Threads that make rows.
    pub threads: usize,
}

/// How far writing has got, in bytes of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// A model that was written.
pub struct Converted {
    /// Size of the file, or of all files of the folder.
    pub bytes: u64,
    /// The tensors.
    pub layout: Layout,
    /// What was lost, by the weight's name in its layer and its stored type.
    pub errors: BTreeMap<(String, &'static str), SquaredError>,
}

impl Output<'_> {
    /// Refuses what must not be replaced, before any work is done.
    pub fn check(&self) -> Result<(), ConvertError> {
        match Container::of(self.path) {
            Container::Gguf => self.check_file(),
            Container::Safetensors => folder::check(self.path),
        }
    }

    /// Refuses to write over the model that is being read.
    pub fn check_not_source(&self, model: &Model) -> Result<(), ConvertError> {
        let (Ok(target), Ok(source)) = (self.path.canonicalize(), Path::new(model.name()).canonicalize())
        else {
            return Ok(());
        };
        // All files of a split model have one name but for their number.
        let whole = |path: &Path| {
            let name = path.display().to_string();
            name.find("-of-")
                .and_then(|at| name[..at].rfind('-').map(|dash| name[..dash].to_owned()))
                .unwrap_or(name)
        };
        if whole(&target) == whole(&source) {
            return Err(ConvertError::IsSource { path: self.path.to_owned() });
        }
        Ok(())
    }

    /// Refuses what the disk has no room for, before any work is done.
    pub fn check_room(&self, layout: &Layout) -> Result<(), ConvertError> {
        disk_space::check(self.path, layout.bytes())
    }

    fn check_file(&self) -> Result<(), ConvertError> {
        if self.path.is_file() && !self.replace {
            return Err(ConvertError::Exists { path: self.path.to_owned() });
        }
        Ok(())
    }
}

/// Writes a model in the types of a recipe, complete or not at all; `progress` may stop it.
pub fn convert(
    model: &Model,
    recipe: &Recipe,
    importance: Option<&Importance>,
    output: Output,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Converted, ConvertError> {
    output.check()?;
    output.check_not_source(model)?;
    let container = Container::of(output.path);
    let weights = model.stored_weights(container == Container::Gguf)?;
    let mut layout = recipe.layout(&model.spec, container)?;
    layout.keep_kv_scales(weights.kv_scales(), container);
    let converter = Converter::new(&weights, &layout, importance, output.threads)?;
    let bytes = match container {
        Container::Gguf => {
            write_gguf(output, &metadata::of_model(model, recipe)?, &layout, &converter, progress)?
        }
        Container::Safetensors => folder::write_folder(output, model, &layout, &converter, progress)?,
    };
    let errors = errors(&layout, &converter);
    drop(converter);
    Ok(Converted { bytes, layout, errors })
}

/// The errors of the weights, by what they are in their layer and how they are stored.
fn errors(layout: &Layout, converter: &Converter) -> BTreeMap<(String, &'static str), SquaredError> {
    let main = layout.tensors.iter().filter(|tensor| tensor.content.is_main());
    let stored: BTreeMap<&str, DType> =
        main.map(|tensor| (tensor.weight.as_str(), tensor.encoding())).collect();
    converter.errors(|weight| {
        let role = weight.rsplit('.').next().unwrap_or(weight).to_owned();
        (role, stored.get(weight).map_or("", |dtype| dtype.name()))
    })
}

/// Writes a GGUF file, complete or not at all, and returns its size in bytes.
pub fn write_gguf(
    output: Output,
    metadata: &GgufMetadata,
    layout: &Layout,
    source: &dyn Source,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<u64, ConvertError> {
    output.check_file()?;
    output.check_room(layout)?;
    let mut tensors = Vec::with_capacity(layout.tensors.len());
    for planned in &layout.tensors {
        tensors.push(GgufTensor {
            name: planned.name.clone(),
            dtype: planned.dtype,
            shape: Shape::new(&planned.shape)?,
        });
    }
    let mut writer = GgufWriter::create(output.path, metadata, &tensors)?;
    stream::stream(&mut writer, layout, source, output.threads, progress)?;
    // Another program may have made the file in the meantime.
    output.check_file()?;
    writer.finish()?;
    Ok(std::fs::metadata(output.path).map_err(ConvertError::write(output.path))?.len())
}

impl Sink for GgufWriter {
    fn write(&mut self, tensor: &Planned, piece: &[u8]) -> Result<(), ConvertError> {
        Ok(GgufWriter::write(self, &tensor.name, piece)?)
    }
}

// Elsewhere the system is not asked for room.
#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::Content;
    use mambo_model::{Order, Part};

    struct Nothing;

    impl Source for Nothing {
        fn rows(&self, _: &Planned, _: Range<usize>, _: &mut [u8]) -> Result<(), ConvertError> {
            Err(ConvertError::Stopped)
        }
    }

    /// One row that no disk holds.
    #[test]
    fn what_does_not_fit_the_disk_is_refused_before_it_is_begun() {
        let tensor = Planned {
            name: "a".to_owned(),
            weight: "embed".to_owned(),
            part: Part::Embed,
            shape: vec![1 << 60],
            dtype: DType::F32,
            first_row: 0,
            second: None,
            rows: Order::Same,
            columns: Order::Same,
            content: Content::Values,
        };
        let layout = Layout { tensors: vec![tensor], notes: Vec::new() };
        let folder = std::env::temp_dir().join(format!("mambo-full-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("huge.gguf");
        let output = Output { path: &path, replace: false, threads: 1 };
        let metadata = GgufMetadata::new("huge");
        let written = write_gguf(output, &metadata, &layout, &Nothing, &mut |_| ControlFlow::Continue(()));
        let error = written.unwrap_err();
        assert!(matches!(error, ConvertError::DiskFull { .. }), "{error}");
        let sentence = error.to_string();
        assert!(sentence.contains("huge.gguf takes 4194304.0 TiB of disk space, but "), "{sentence}");
        assert!(sentence.contains("write to another disk or choose a smaller type"), "{sentence}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "no unfinished file stays");
        std::fs::remove_dir(&folder).unwrap();
    }
}
