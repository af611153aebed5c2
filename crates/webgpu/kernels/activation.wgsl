// What opens a gate. Constants: ACTIVATION. Parameters: alpha, limit.
#include "math.wgsl"

fn activate(gate: f32, x: f32) -> f32 {
    switch (ACTIVATION) {
        case 0u: {
            return silu(gate) * x;
        }
        case 1u: {
            return x * sigmoid(gate);
        }
        case 2u: {
            let inner = 0.7978845608 * fma(0.044715 * gate * gate, gate, gate);
            return 0.5 * gate * (1.0 + tanh_of(inner)) * x;
        }
        case 3u: {
            return 0.5 * gate * (1.0 + erf_of(gate * 0.7071067812)) * x;
        }
        default: {
            let g = min(gate, p.limit);
            return g * sigmoid(p.alpha * g) * (clamp(x, -p.limit, p.limit) + 1.0);
        }
    }
}
