//! Kernels compiled for the device, one pipeline for each specialisation. All have one layout of bindings.
#![allow(unsafe_code)]

use std::collections::HashMap;

use mambo_kernel::BackendError;

use crate::device::Device;
use crate::source::Specialisation;

/// Bytes of the parameters that a kernel sees; it may have fewer.
pub(crate) const PARAMS_BYTES: u64 = 256;

/// The buffers of `kernels/common.wgsl`.
#[derive(Clone, Copy)]
pub(crate) struct Bindings<'a> {
    pub arena: &'a wgpu::Buffer,
    pub step: &'a wgpu::Buffer,
    pub params: &'a wgpu::Buffer,
    pub vectors: &'a wgpu::Buffer,
    pub matrix: &'a wgpu::Buffer,
    pub cache: &'a wgpu::Buffer,
}

/// The compiled kernels of a device.
pub(crate) struct Pipelines {
    bindings: wgpu::BindGroupLayout,
    layout: wgpu::PipelineLayout,
    compiled: HashMap<String, wgpu::ComputePipeline>,
}

impl Pipelines {
    pub fn new(device: &wgpu::Device) -> Pipelines {
        let storage = |read_only| wgpu::BufferBindingType::Storage { read_only };
        let types = [
            storage(false),
            storage(true),
            wgpu::BufferBindingType::Uniform,
            storage(true),
            storage(true),
            storage(false),
        ];
        let entries: Vec<_> = (0..)
            .zip(types)
            .map(|(binding, ty)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty,
                    has_dynamic_offset: ty == wgpu::BufferBindingType::Uniform,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let bindings = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("kernels"),
            entries: &entries,
        });
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some("kernels"),
            bind_group_layouts: &[Some(&bindings)],
            ..Default::default()
        });
        Pipelines { bindings, layout, compiled: HashMap::new() }
    }

    /// The pipeline of a kernel, compiled if this is the first time.
    pub fn get(
        &mut self,
        device: &Device,
        kernel: &Specialisation,
    ) -> Result<wgpu::ComputePipeline, BackendError> {
        let name = kernel.to_string();
        if let Some(pipeline) = self.compiled.get(&name) {
            return Ok(pipeline.clone());
        }
        let what = format!("compiling kernel {name}");
        device.faults.check(&what)?;
        let source = wgpu::ShaderSource::Wgsl(kernel.text().into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(&name), source };
        // SAFETY: the text is this crate's own. Its kernels leave beyond the rows of the step, which was checked against
        // the program, and index operands, weights and caches whose sizes were checked when the program was bound; ids
        // that come from the device are bounded where they are used. Loops end.
        let module = unsafe {
            device.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        };
        device.faults.check(&what)?;
        let pipeline = device.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&self.layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        device.faults.check(&what)?;
        self.compiled.insert(name, pipeline.clone());
        Ok(pipeline)
    }

    /// Binds buffers.
    pub fn bind(&self, device: &wgpu::Device, buffers: &Bindings) -> wgpu::BindGroup {
        let params = wgpu::BufferBinding {
            buffer: buffers.params,
            offset: 0,
            size: std::num::NonZeroU64::new(PARAMS_BYTES),
        };
        let resources = [
            buffers.arena.as_entire_binding(),
            buffers.step.as_entire_binding(),
            wgpu::BindingResource::Buffer(params),
            buffers.vectors.as_entire_binding(),
            buffers.matrix.as_entire_binding(),
            buffers.cache.as_entire_binding(),
        ];
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("kernels"),
            layout: &self.bindings,
            entries: &entries,
        })
    }
}
