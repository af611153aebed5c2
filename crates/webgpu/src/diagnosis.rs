//! What `doctor` tries on a device before real kernels: tasks whose results are known, from a bare dispatch up, each with
//! what its failure means. Also how fast the device reads its memory.

use mambo_kernel::BackendError;

use crate::device::Device;
use crate::params::{Params, narrow, params};
use crate::pipelines::{Bindings, Pipelines};
use crate::source::{Source, Specialisation};
use crate::steps::ReadBack;

params! {
    struct ProbeParams { last: u32 }
    struct BandwidthParams { vectors: u32, threads: u32 }
}

static PROBE: Source =
    Source { stem: "probe", text: include_str!("../kernels/probe.wgsl"), params: ProbeParams::wgsl };
static BANDWIDTH: Source = Source {
    stem: "bandwidth",
    text: include_str!("../kernels/bandwidth.wgsl"),
    params: BandwidthParams::wgsl,
};

/// Words of a probe's input and of its output.
const WORDS: usize = 256;
/// Dispatches of the chain: about two steps of a model with fifty layers.
const CHAIN: usize = 300;
/// Bytes of the buffer whose far end is tried, where the device binds as many.
const LARGE_BYTES: usize = 512 << 20;

/// One thing that was tried.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// What it was.
    pub name: &'static str,
    /// What was wrong, with what that means and what to do.
    pub result: Result<(), String>,
}

/// A task for 256 threads.
struct Probe {
    name: &'static str,
    /// What a failure means, and what to do.
    advice: &'static str,
    input: fn(u32) -> u32,
    /// The word that a thread must leave, from all input.
    want: fn(&[u32], usize) -> u32,
    dispatches: usize,
}

const NEW_DRIVER: &str = "the driver computes wrongly: update it, or use another backend";

/// In the order of `PROBE` in probe.wgsl.
const PROBES: [Probe; 10] = [
    Probe {
        name: "a dispatch",
        advice: "nothing runs on this device: update its driver",
        input: |i| i * 7,
        want: |input, i| input[i] * 3 + 1,
        dispatches: 1,
    },
    Probe {
        name: "workgroup memory",
        advice: "barriers do not hold threads back; no kernel can work: update the driver",
        input: |i| i * 0x0101_0101,
        want: |input, i| input[255 - i],
        dispatches: 1,
    },
    Probe {
        name: "16-bit packing",
        advice: "16-bit weights and caches would be wrong (f32 ones may still work): update the driver",
        input: |i| (i * 120) | (0x3c00 + i) << 16,
        want: |input, i| input[i],
        dispatches: 1,
    },
    Probe {
        name: "4-bit codes",
        advice: NEW_DRIVER,
        input: |i| i.wrapping_mul(0x9e37_79b9),
        want: |input, i| (0..8).map(|n| input[i] >> (4 * n) & 15).sum(),
        dispatches: 1,
    },
    Probe {
        name: "a reduction",
        advice: NEW_DRIVER,
        input: |i| i * i,
        want: |input, _| input.iter().sum(),
        dispatches: 1,
    },
    Probe {
        name: "atomic counts",
        advice: "experts could not be sorted, and no token drawn: update the driver",
        input: |i| i * 5 / 3,
        want: |input, i| input.iter().filter(|word| **word as usize % 4 == i % 4).count() as u32,
        dispatches: 1,
    },
    Probe {
        name: "the exponential",
        advice: "softmax and gates would be wrong: update the driver, it may compile `fma` or shifts wrongly",
        input: |i| ((i as f32 - 130.0) * 0.75).to_bits(),
        want: |input, i| f32::from_bits(input[i]).exp().to_bits(),
        dispatches: 1,
    },
    Probe {
        name: "300 dispatches in a row",
        advice: "dispatches do not wait for each other: update the driver",
        input: |i| i + 1,
        want: |input, i| (0..CHAIN).fold(0u32, |x, _| x.wrapping_mul(1_664_525).wrapping_add(input[i])),
        dispatches: CHAIN,
    },
    Probe {
        name: "memory within a workgroup",
        advice: "recurrent layers could not pass their states on: update the driver",
        input: |i| i * 11,
        want: |input, i| input[255 - i],
        dispatches: 1,
    },
    Probe {
        name: "the end of a large buffer",
        advice: "large weights would be wrong: use a smaller model, or update the driver",
        input: |i| i * 13,
        want: |input, i| input[255 - i],
        dispatches: 1,
    },
];

/// Everything here, for tests.
pub(crate) fn specialisations() -> Vec<Specialisation> {
    let probes = (0..PROBES.len()).map(|number| Specialisation::new(&PROBE).define("PROBE", number));
    probes.chain([Specialisation::new(&BANDWIDTH)]).collect()
}

/// Buffers that a probe runs on.
struct Bench<'a> {
    device: &'a Device,
    pipelines: &'a mut Pipelines,
    arena: wgpu::Buffer,
    unused: wgpu::Buffer,
    params: wgpu::Buffer,
}

impl<'a> Bench<'a> {
    fn new(
        device: &'a Device,
        pipelines: &'a mut Pipelines,
        words: usize,
    ) -> Result<Bench<'a>, BackendError> {
        Ok(Bench {
            arena: device.storage(words * 4, "a check")?,
            unused: device.storage(0, "nothing")?,
            params: device.uniform(256, "parameters of a check")?,
            device,
            pipelines,
        })
    }

    /// Queues a kernel so many times and returns the last submission.
    fn run(
        &mut self,
        kernel: &Specialisation,
        params: &[u32],
        [matrix, cache]: [&wgpu::Buffer; 2],
        [workgroups, times]: [usize; 2],
    ) -> Result<(), BackendError> {
        let pipeline = self.pipelines.get(self.device, kernel)?;
        self.device.write(&self.params, 0, params);
        let buffers = Bindings {
            arena: &self.arena,
            step: &self.unused,
            params: &self.params,
            vectors: &self.unused,
            matrix,
            cache,
        };
        let group = self.pipelines.bind(&self.device.device, &buffers);
        let mut encoder = self.device.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[0]);
            (0..times).for_each(|_| pass.dispatch_workgroups(narrow(workgroups), 1, 1));
        }
        self.device.queue.submit([encoder.finish()]);
        self.device.faults.check(&kernel.to_string())
    }

    /// The first words of the arena.
    async fn read(&self, words: usize) -> Result<Vec<u32>, BackendError> {
        let buffer = self.device.read_back(words * 4, "a check's results")?;
        let mut encoder = self.device.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.arena, 0, &buffer, 0, Some(words as u64 * 4));
        let submission = self.device.queue.submit([encoder.finish()]);
        let read = ReadBack::of(self.device, buffer, submission);
        read.arrival(self.device, "reading a check's results").await?;
        let mut all = Vec::with_capacity(words);
        read.take(words * 4, |bytes| {
            all.extend(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
        })?;
        Ok(all)
    }
}

/// Tries everything in order, up to the first failure: what follows needs it.
pub(crate) async fn diagnose(device: &Device, pipelines: &mut Pipelines) -> Vec<Diagnosis> {
    let mut all = Vec::with_capacity(PROBES.len());
    for (number, probe) in PROBES.iter().enumerate() {
        let result = try_probe(device, pipelines, number).await;
        let failed = result.is_err();
        all.push(Diagnosis {
            name: probe.name,
            result: result.map_err(|problem| format!("{problem}: {}", probe.advice)),
        });
        if failed {
            break;
        }
    }
    all
}

async fn try_probe(device: &Device, pipelines: &mut Pipelines, number: usize) -> Result<(), String> {
    let probe = &PROBES[number];
    let text = |error: BackendError| error.to_string();
    let most = usize::try_from(device.shard_bytes()).unwrap_or(usize::MAX);
    let large = if number == PROBES.len() - 1 { LARGE_BYTES.min(most) } else { WORDS * 4 };
    let cache = device.storage(large, "the buffer of a check").map_err(text)?;
    let mut bench = Bench::new(device, pipelines, 2 * WORDS).map_err(text)?;
    let input: Vec<u32> = (0..WORDS as u32).map(probe.input).collect();
    device.write(&bench.arena, 0, &input);
    let kernel = Specialisation::new(&PROBE).define("PROBE", number);
    let params = ProbeParams { last: narrow(large / 4 - 1) }.words();
    let unused = bench.unused.clone();
    bench.run(&kernel, &params, [&unused, &cache], [1, probe.dispatches]).map_err(text)?;
    let got = bench.read(2 * WORDS).await.map_err(text)?;
    let wrong = (0..WORDS).find(|i| !is_near(got[WORDS + i], (probe.want)(&input, *i), number));
    match wrong {
        None => Ok(()),
        Some(i) => Err(format!("thread {i} gives {:#x}", got[WORDS + i])),
    }
}

/// The exponential may be off where a compiler puts the two parts of ln 2 together again, and tiny ones by all of it.
fn is_near(got: u32, want: u32, number: usize) -> bool {
    if PROBES[number].name != "the exponential" {
        return got == want;
    }
    let (got, want) = (f32::from_bits(got), f32::from_bits(want));
    got == want || (got - want).abs() <= 1e-5 * want.abs() + 2e-38
}

/// GB/s at which the device reads `bytes` of its memory, or as many as it binds, in a plain loop.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn read_bandwidth(
    device: &Device,
    pipelines: &mut Pipelines,
    bytes: usize,
) -> Result<f64, BackendError> {
    const WORKGROUPS: usize = 2048;
    const PASSES: usize = 3;
    // Times that the memory is read in one submission, whose own time then hardly counts.
    const READS: usize = 16;
    let most = usize::try_from(device.shard_bytes()).unwrap_or(usize::MAX);
    let vectors = bytes.min(most) / 16;
    let read = device.storage(vectors * 16, "memory that is read")?;
    let mut bench = Bench::new(device, pipelines, WORKGROUPS * 256)?;
    let cache = device.storage(0, "nothing, either")?;
    let params = BandwidthParams { vectors: narrow(vectors), threads: narrow(WORKGROUPS * 256) }.words();
    let mut best = f64::INFINITY;
    for pass in 0..=PASSES {
        let begin = std::time::Instant::now();
        bench.run(
            &Specialisation::new(&BANDWIDTH),
            &params,
            [&read, &cache],
            [WORKGROUPS, if pass > 0 { READS } else { 1 }],
        )?;
        device.device.poll(wgpu::PollType::wait_indefinitely()).ok();
        // The first one compiles, and clears the memory.
        if pass > 0 {
            best = best.min(begin.elapsed().as_secs_f64());
        }
    }
    device.faults.check("measuring bandwidth")?;
    Ok((READS * vectors * 16) as f64 / best / 1e9)
}
