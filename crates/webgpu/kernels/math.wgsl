// Functions whose precision the language leaves to drivers, written out: they are accurate to a few units in the last
// place, and the same in every kernel.

fn power_of_two(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

fn exp_of(x: f32) -> f32 {
    let bounded = clamp(x, -104.0, 89.0);
    let n = round(bounded * 1.44269504);
    let whole = i32(n);
    // Not twice the same factor: compilers that may reassociate would put the parts of ln 2 together, here or there.
    let r = fma(f32(whole), 2.12194440e-4, fma(n, -0.693359375, bounded));
    var y = fma(1.9875691500e-4, r, 1.3981999507e-3);
    y = fma(y, r, 8.3334519073e-3);
    y = fma(y, r, 4.1665795894e-2);
    y = fma(y, r, 1.6666665459e-1);
    y = fma(y, r, 5.0000001201e-1);
    y = fma(y, r * r, r) + 1.0;
    let half = whole / 2;
    return y * power_of_two(half) * power_of_two(whole - half);
}

// Of a normal number above zero.
fn log_of(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    var exponent = f32(i32(bits >> 23u) - 126);
    var m = bitcast<f32>((bits & 0x007fffffu) | 0x3f000000u);
    if (m < 0.70710678) {
        exponent = exponent - 1.0;
        m = m + m - 1.0;
    } else {
        m = m - 1.0;
    }
    let z = m * m;
    var y = fma(7.0376836292e-2, m, -1.1514610310e-1);
    y = fma(y, m, 1.1676998740e-1);
    y = fma(y, m, -1.2420140846e-1);
    y = fma(y, m, 1.4249322787e-1);
    y = fma(y, m, -1.6668057665e-1);
    y = fma(y, m, 2.0000714765e-1);
    y = fma(y, m, -2.4999993993e-1);
    y = fma(y, m, 3.3333331174e-1);
    y = y * m * z;
    y = fma(exponent, -2.12194440e-4, y);
    y = fma(-0.5, z, y);
    return fma(exponent, 0.693359375, m + y);
}

// ln(1 + u) for u of 0 to 1, accurate where u is tiny.
fn log_one_plus(u: f32) -> f32 {
    let s = u / (2.0 + u);
    let z = s * s;
    var y = fma(0.0588235294, z, 0.0666666667);
    y = fma(y, z, 0.0769230769);
    y = fma(y, z, 0.0909090909);
    y = fma(y, z, 0.1111111111);
    y = fma(y, z, 0.1428571429);
    y = fma(y, z, 0.2);
    y = fma(y, z, 0.3333333333);
    return 2.0 * fma(s * z, y, s);
}

fn softplus(x: f32) -> f32 {
    if (x > 20.0) {
        return x;
    }
    let tail = log_one_plus(exp_of(-abs(x)));
    return max(x, 0.0) + tail;
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_of(-x));
}

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp_of(-x));
}

fn tanh_of(x: f32) -> f32 {
    let size = abs(x);
    if (size < 0.625) {
        let z = x * x;
        var y = fma(-5.70498872745e-3, z, 2.06390887954e-2);
        y = fma(y, z, -5.37397155531e-2);
        y = fma(y, z, 1.33314422036e-1);
        y = fma(y, z, -3.33332819422e-1);
        return fma(y * z, x, x);
    }
    let y = 1.0 - 2.0 / (exp_of(2.0 * size) + 1.0);
    return select(y, -y, x < 0.0);
}

// The error function to 1.5e-7.
fn erf_of(x: f32) -> f32 {
    let size = abs(x);
    let t = 1.0 / fma(0.3275911, size, 1.0);
    var y = fma(1.061405429, t, -1.453152027);
    y = fma(y, t, 1.421413741);
    y = fma(y, t, -0.284496736);
    y = fma(y, t, 0.254829592);
    y = 1.0 - y * t * exp_of(-size * size);
    return select(y, -y, x < 0.0);
}
