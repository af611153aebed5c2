//! Weights that cannot be loaded, cells that do not fit and options that a machine lacks are errors with names.
#![allow(dead_code, reason = "the builder is used by other tests")]

mod build;

use build::{Source, backend};
use mambo_cpu::{CpuBackend, CpuOptions, Isa};
use mambo_kernel::case::CaseWeight;
use mambo_kernel::{Backend, Cell, OpKind, WeightError, WeightKey, WeightPart, WeightSource, WeightUse};
use mambo_tensor::DType;

/// A weight whose second part cannot be read.
struct Damaged<'a>(Source<'a>);

impl WeightSource for Damaged<'_> {
    fn dtype(&self) -> DType {
        self.0.dtype()
    }
    fn shape(&self) -> &[usize] {
        self.0.shape()
    }
    fn part_count(&self) -> usize {
        self.0.part_count()
    }
    fn part(&self, index: usize) -> Result<WeightPart<'_>, WeightError> {
        if index == 1 { Err(WeightError("the file is damaged".into())) } else { self.0.part(index) }
    }
    fn release(&self, index: usize) {
        self.0.release(index);
    }
    fn digest(&self) -> u64 {
        self.0.digest()
    }
}

/// The key of weight `w` as a kernel reads it that uses it like this.
fn key(backend: &CpuBackend, usage: WeightUse) -> WeightKey {
    let op = match usage {
        WeightUse::Matrix => OpKind::Matmul,
        WeightUse::Experts => OpKind::MoeMatmul,
        WeightUse::Table => OpKind::Embed,
        WeightUse::Vector => OpKind::RmsNorm,
    };
    let row = backend.kernels().iter().find(|row| row.op == op).expect("every op has a row");
    WeightKey { name: "w".into(), usage, form: row.weight_form }
}

#[test]
fn a_part_that_cannot_be_read_is_an_error() {
    use mambo_kernel::WeightUse::{Experts, Matrix, Table, Vector};
    let mut backend = backend(Isa::detect(), 1);
    for usage in [Matrix, Experts, Table, Vector] {
        let shape: &[usize] = if usage == Experts { &[2, 2, 4] } else { &[4, 4] };
        let weight = CaseWeight::f32(shape, &vec![1.0; shape.iter().product()]);
        let key = key(&backend, usage);
        let error =
            backend.load_weight(&key, &Damaged(Source(&weight, &[1.0, 0.5]))).unwrap_err().to_string();
        assert!(error.contains("`w`") && error.contains("the file is damaged"), "{error}");
    }
}

#[test]
fn bad_weights_snapshots_and_options_are_errors() {
    let mut backend = backend(Isa::detect(), 1);
    let load = |backend: &mut CpuBackend, usage, dtype, shape: &[usize], bytes: usize| {
        let weight = CaseWeight { dtype, shape: shape.to_vec(), bytes: vec![0; bytes] };
        let key = key(backend, usage);
        backend.load_weight(&key, &Source(&weight, &[1.0])).map_err(|e| e.to_string())
    };
    use mambo_kernel::WeightUse::{Experts, Matrix, Table};
    let error = load(&mut backend, Matrix, DType::I64, &[4, 32], 1024).unwrap_err();
    assert!(error.contains("`w`") && error.contains("i64") && error.contains("q4_0"), "{error}");
    assert!(load(&mut backend, Matrix, DType::F32, &[4, 32, 1], 512).unwrap_err().contains("two dimensions"));
    assert!(load(&mut backend, Matrix, DType::Q4_0, &[4, 33], 72).unwrap_err().contains("whole blocks"));
    assert!(load(&mut backend, Matrix, DType::F32, &[4, 32], 500).is_err());
    assert!(load(&mut backend, Experts, DType::F32, &[2, 4, 32], 512).unwrap_err().contains("missing"));
    assert!(load(&mut backend, Table, DType::F32, &[4, 32], 600).is_err());
    assert!(backend.import_cell(Cell::Slot { slot: 0, position: 0 }, &[0; 4]).is_err());
    if let Some(isa) = [Isa::Avx2, Isa::Avx512].into_iter().find(|i| !Isa::available().contains(i)) {
        assert!(
            CpuBackend::new(CpuOptions {
                threads: 1,
                isa: Some(isa),
                every_thread: true,
                ..CpuOptions::default()
            })
            .is_err()
        );
    }
}
