# Kernels of GPUs, on machines without one.

compiles_kernels() {
  # Needs no GPU: the compiler alone, for every architecture.
  if python3 -m venv target/nvrtc >/dev/null 2>&1 &&
    problem=$(target/nvrtc/bin/pip install -q -r tests/nvrtc.txt 2>&1); then
    libraries=("$PWD"/target/nvrtc/lib/python3*/site-packages/nvidia/cu13/lib)
    LD_LIBRARY_PATH="${libraries[0]}" run_test cuda compile --nocapture
  else
    echo "SKIPPED: python3 cannot make an environment with NVRTC: ${problem:-no venv}"
  fi
}

# The ops that a thread after the other computes in little time; the others, whole models and GPUs that fail take long:
# `cargo test -p mambo-cuda --test contracts`, `-p mambo-engine --test gpu_faults`, `tests/gpu_server.py`.
runs_emulated_gpu() {
  run_test cuda contracts \
    add relu2 bias concat gather_rows soft_cap glu rms_norm head_norm layer_norm quantize rope ssm_conv short_conv \
    ssm_dt gated_group_norm moe_combine moe_bias moe_route embed
  run_test cuda fusion
}

# Attention is not among them yet: on such a device its cases take longer than everything else here.
runs_webgpu_in_software() {
  run_test webgpu contracts \
    add relu2 bias concat gather_rows soft_cap glu embed matmul moe_matmul moe_bias moe_combine moe_route \
    rms_norm head_norm layer_norm gated_group_norm quantize rope ssm_dt ssm_conv short_conv ssm_scan ssm_step delta_scan choose
  # Whole models; mlx-4bit is not among them: its weights are rounded to f16 there.
  run_test engine webgpu dense moe modelopt-nvfp4 modelopt-fp8 modelopt-mixed integers snapshots faults
}
