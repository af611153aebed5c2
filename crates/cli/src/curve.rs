//! A picture of a divergence: how much of the text diverges by how much. Plain SVG, no dependencies.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;
/// Points of the curve.
const POINTS: usize = 200;
/// Divergences below this are drawn at the bottom.
const FLOOR: f64 = 1e-7;

/// The curve of sorted divergences over the share of tokens, on a logarithmic scale.
pub fn svg_curve(title: &str, sorted: &[f64], mean: f64) -> String {
    let top = sorted.last().copied().unwrap_or(1.0).max(mean).max(1e-6);
    let decades = (FLOOR.log10().floor(), top.log10().ceil());
    let x = |share: f64| LEFT + share * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| {
        let at = (value.max(FLOOR).log10() - decades.0) / (decades.1 - decades.0);
        HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM)
    };
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<text x="{LEFT}" y="24" font-size="15">{}</text>
<text x="{LEFT}" y="41" fill="#666">KL divergence in nats over the share of tokens, smallest first</text>
"##,
        escape(title)
    );
    for decade in decades.0 as i32..=decades.1 as i32 {
        let at = y(10f64.powi(decade));
        let (end, label) = (WIDTH - RIGHT, LEFT - 8.0);
        let _ = writeln!(
            svg,
            r##"<line x1="{LEFT}" x2="{end}" y1="{at:.1}" y2="{at:.1}" stroke="#ddd"/><text x="{label}" y="{:.1}" text-anchor="end">1e{decade}</text>"##,
            at + 4.0
        );
    }
    for share in [0, 25, 50, 75, 90, 99] {
        let at = x(f64::from(share) / 100.0);
        let _ = writeln!(
            svg,
            r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle">{share}%</text>"#,
            HEIGHT - BOTTOM + 18.0
        );
    }
    let mut path = String::new();
    for i in 0..=POINTS {
        let share = i as f64 / POINTS as f64;
        let index = ((share * sorted.len() as f64) as usize).min(sorted.len().saturating_sub(1));
        let value = sorted.get(index).copied().unwrap_or(0.0);
        let _ = write!(path, "{}{:.1},{:.1} ", if i == 0 { "M" } else { "L" }, x(share), y(value));
    }
    let at = y(mean);
    let _ = writeln!(
        svg,
        r##"<path d="{path}" fill="none" stroke="#2a6fdb" stroke-width="2"/>
<line x1="{LEFT}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}" stroke="#d9532a" stroke-dasharray="5 4"/>
<text x="{:.1}" y="{:.1}" fill="#d9532a">mean {mean:.2e}</text>
</svg>"##,
        WIDTH - RIGHT,
        LEFT + 6.0,
        at - 5.0
    );
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_is_inside_the_picture() {
        for sorted in [vec![], vec![0.0; 5], vec![1e-9, 1e-3, 20.0]] {
            let svg = svg_curve("a < b & c", &sorted, 0.5);
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }
}
